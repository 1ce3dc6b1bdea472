"""Bring the schema to the newest revision."""

from pathlib import Path

from alembic import command
from alembic.config import Config

import migrations
from app.bootstrap import Services


def alembic_config(services: Services) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.attributes["engine"] = services.database.engine
    return config


def upgrade(services: Services, revision: str = "head") -> None:
    command.upgrade(alembic_config(services), revision)


def downgrade(services: Services, revision: str) -> None:
    command.downgrade(alembic_config(services), revision)

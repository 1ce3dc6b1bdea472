"""Bring the schema to the newest revision, and tell how it stands to this code.

Tables are changed so that the code before still works (docs/operating.md, Upgrades): hence a database that is
ahead, at a revision this code does not know, is served as it is. One that is behind is not.
"""

from functools import cache
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

import migrations
from app.bootstrap import Services


def alembic_config(services: Services) -> Config:
    config = _config()
    config.attributes["engine"] = services.database.engine
    return config


def upgrade(services: Services, revision: str = "head") -> None:
    """To the newest revision this code knows; a database that is ahead stays as it is."""
    with services.database.engine.connect() as connection:
        ahead = _is_unknown(_revision(connection))
    if not ahead:
        command.upgrade(alembic_config(services), revision)


def downgrade(services: Services, revision: str) -> None:
    command.downgrade(alembic_config(services), revision)


def is_behind(connection: Connection) -> bool:
    found = _revision(connection)
    return found is None or (found != _script().get_current_head() and not _is_unknown(found))


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _is_unknown(revision: str | None) -> bool:
    return revision is not None and revision not in {known.revision for known in _script().walk_revisions()}


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    return config


@cache
def _script() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config())

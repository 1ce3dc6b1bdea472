"""Migration of the schema, and the check whether it is new enough for this code.

Every revision keeps the previous release working (docs/operating.md, Upgrades). So a database that is ahead,
at a revision that this code does not know, is served as it is. A database that is behind is not served.
"""

from functools import cache
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

import migrations
from app.db.session import Database


def alembic_config(database: Database) -> Config:
    """Return the configuration of Alembic for this database."""
    config = _config()
    config.attributes["engine"] = database.engine
    return config


def upgrade(database: Database, revision: str = "head") -> None:
    """Migrate to the newest revision that this code knows. A database that is ahead is left alone."""
    with database.engine.connect() as connection:
        ahead = _is_unknown(_revision(connection))
    if not ahead:
        command.upgrade(alembic_config(database), revision)


def downgrade(database: Database, revision: str) -> None:
    """Migrate back to an earlier revision."""
    command.downgrade(alembic_config(database), revision)


def is_behind(connection: Connection) -> bool:
    """Return whether the database must be migrated before this code can serve it."""
    revision = _revision(connection)
    return revision is None or (revision != _script().get_current_head() and not _is_unknown(revision))


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

"""Alembic runs on the engine it is handed; there is no second place that reads a database URL."""

from collections.abc import Iterator
from contextlib import contextmanager

from alembic import context
from sqlalchemy import Connection

from app.db import audit_log, callbacks, deployment, refusals, tables, webhooks  # noqa: F401  (they fill the metadata)
from app.db.types import Base


@contextmanager
def _tables_may_be_rebuilt(connection: Connection) -> Iterator[None]:
    """Let SQLite rebuild a table that others refer to, which is its only way to change a constraint.

    Foreign keys are switched off meanwhile, and checked before they are switched on again. PostgreSQL needs
    nothing.
    """
    if connection.dialect.name != "sqlite":
        yield
        return
    raw = connection.connection.driver_connection
    assert raw is not None
    raw.execute("PRAGMA foreign_keys=OFF")  # has no effect inside a transaction, so it comes first
    try:
        yield
        if raw.execute("PRAGMA foreign_key_check").fetchone() is not None:
            raise RuntimeError("a migration left rows that refer to missing rows")
    finally:
        raw.execute("PRAGMA foreign_keys=ON")


engine = context.config.attributes["engine"]
with engine.connect() as connection, _tables_may_be_rebuilt(connection):
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        render_as_batch=True,
        compare_type=True,
        transaction_per_migration=True,
    )
    with context.begin_transaction():
        context.run_migrations()

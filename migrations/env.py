"""Alembic runs on the engine it is handed; there is no second place that reads a database URL."""

from alembic import context

from app.db import deployment, refusals, tables, webhooks  # noqa: F401  (they fill the metadata)
from app.db.types import Base

engine = context.config.attributes["engine"]
with engine.connect() as connection:
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        render_as_batch=True,
        compare_type=True,
        transaction_per_migration=True,
    )
    with context.begin_transaction():
        context.run_migrations()

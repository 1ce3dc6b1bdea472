"""Privacy accounting reads columns of a batch instead of its history of events"""

import json

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0020"

CANCELLED = "cancelled by its owner"  # the error by which earlier code marked a cancelled batch
STEPS_ON_ROWS = ("solve", "certify", "release")

batches = sa.table(
    "batches",
    sa.column("id", sa.Uuid()),
    sa.column("attempts_started", sa.Integer()),
    sa.column("rows_examined", sa.Boolean()),
    sa.column("cancelled", sa.Boolean()),
    sa.column("error", sa.String()),
)
events = sa.table(
    "batch_events",
    sa.column("id", sa.BigInteger()),
    sa.column("batch_id", sa.Uuid()),
    sa.column("kind", sa.String()),
    sa.column("data", sa.JSON()),
)


def upgrade() -> None:
    op.add_column("jobs", sa.Column("failure_cause", sa.String(length=24), nullable=True))
    op.add_column("batches", sa.Column("attempts_started", sa.Integer(), nullable=False, server_default="0"))
    op.add_column(
        "batches", sa.Column("rows_examined", sa.Boolean(), nullable=False, server_default=sa.false())
    )
    op.add_column("batches", sa.Column("cancelled", sa.Boolean(), nullable=False, server_default=sa.false()))
    _fill_from_history()


def _fill_from_history() -> None:
    """Fill the new columns from the events of existing batches."""
    connection = op.get_bind()
    started: dict[object, int] = {}
    examined: dict[object, bool] = {}
    history = sa.select(events.c.batch_id, events.c.kind, events.c.data).where(
        events.c.kind.in_(("state", "step", "retry"))
    )
    for batch_id, kind, stored in connection.execute(history.order_by(events.c.id)).all():
        data = json.loads(stored) if isinstance(stored, str) else stored
        started.setdefault(batch_id, 0)
        if kind == "state" and data.get("state") == "running":
            started[batch_id] += 1
        elif kind == "step":
            examined[batch_id] = examined.get(batch_id, False) or data.get("step") in STEPS_ON_ROWS
        elif kind == "retry":
            examined[batch_id] = False
    for batch_id, count in started.items():
        connection.execute(
            sa.update(batches)
            .where(batches.c.id == batch_id)
            .values(attempts_started=count, rows_examined=examined.get(batch_id, False))
        )
    connection.execute(sa.update(batches).where(batches.c.error == CANCELLED).values(cancelled=True))


def downgrade() -> None:
    op.drop_column("batches", "cancelled")
    op.drop_column("batches", "rows_examined")
    op.drop_column("batches", "attempts_started")
    op.drop_column("jobs", "failure_cause")

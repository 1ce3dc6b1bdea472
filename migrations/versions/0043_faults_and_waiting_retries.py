"""Faults of the infrastructure are counted apart from errors, and a retry can wait for its turn"""

import sqlalchemy as sa
from alembic import op

revision = "0043"
down_revision = "0042"

COUNTS = ("errors", "faults", "deaths")
TIMES = ("faulty_since", "delay_told_at")


def upgrade() -> None:
    for name in COUNTS:
        op.add_column("jobs", sa.Column(name, sa.Integer(), nullable=False, server_default="0"))
    for name in TIMES:
        op.add_column("jobs", sa.Column(name, sa.DateTime(timezone=True), nullable=True))
    op.add_column(
        "batches", sa.Column("retry_requested", sa.Boolean(), nullable=False, server_default=sa.false())
    )


def downgrade() -> None:
    op.drop_column("batches", "retry_requested")
    for name in (*TIMES, *COUNTS):
        op.drop_column("jobs", name)

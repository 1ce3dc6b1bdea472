"""Traces"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("erasures", sa.Column("traceparent", sa.String(length=55), nullable=True))
    op.add_column("jobs", sa.Column("traceparent", sa.String(length=55), nullable=True))


def downgrade() -> None:
    op.drop_column("jobs", "traceparent")
    op.drop_column("erasures", "traceparent")

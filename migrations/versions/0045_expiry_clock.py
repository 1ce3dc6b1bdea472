"""The dispatcher remembers the time by which it last deleted what had expired"""

import sqlalchemy as sa
from alembic import op

revision = "0045"
down_revision = "0044"


def upgrade() -> None:
    op.add_column("deployment", sa.Column("expiry_clock_at", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    op.drop_column("deployment", "expiry_clock_at")

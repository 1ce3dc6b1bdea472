"""Evidence and the figures of reports are deleted when the days of the policy are over"""

import sqlalchemy as sa
from alembic import op

revision = "0049"
down_revision = "0048"


def upgrade() -> None:
    deleted = sa.DateTime(timezone=True)
    op.add_column("certificates", sa.Column("evidence_deleted_at", deleted, nullable=True))
    op.add_column("reports", sa.Column("deleted_at", deleted, nullable=True))


def downgrade() -> None:
    op.drop_column("reports", "deleted_at")
    op.drop_column("certificates", "evidence_deleted_at")

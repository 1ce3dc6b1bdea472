"""A request that is withdrawn can say why"""

import sqlalchemy as sa
from alembic import op

revision = "0046"
down_revision = "0045"


def upgrade() -> None:
    op.add_column("erasures", sa.Column("withdrawal_reason", sa.String(200), nullable=True))


def downgrade() -> None:
    op.drop_column("erasures", "withdrawal_reason")

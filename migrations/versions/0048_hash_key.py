"""The key of keyed hashes outlives a rotation of the deployment key"""

import sqlalchemy as sa
from alembic import op

revision = "0048"
down_revision = "0047"


def upgrade() -> None:
    op.add_column("deployment", sa.Column("hash_key", sa.LargeBinary(), nullable=True))


def downgrade() -> None:
    op.drop_column("deployment", "hash_key")

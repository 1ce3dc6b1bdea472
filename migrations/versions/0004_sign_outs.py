"""Sign-outs"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_table(
        "sign_outs",
        sa.Column("nonce", sa.String(length=24), nullable=False),
        sa.Column("ends_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("nonce", name=op.f("pk_sign_outs")),
    )


def downgrade() -> None:
    op.drop_table("sign_outs")

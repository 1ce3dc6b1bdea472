"""Sessions of people who sign in through an identity provider"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0041"
down_revision = "0040"

_JSON = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    op.create_table(
        "person_sessions",
        sa.Column("nonce", sa.String(24), nullable=False),
        sa.Column("subject", sa.String(40), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("groups", _JSON, nullable=False),
        sa.Column("ends_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("nonce", name=op.f("pk_person_sessions")),
    )


def downgrade() -> None:
    op.drop_table("person_sessions")

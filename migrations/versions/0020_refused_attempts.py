"""Refused attempts"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0020"
down_revision = "0010"

JSON = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    op.create_table(
        "refused_attempts",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("model_id", sa.Uuid(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("reason", sa.String(length=24), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("epsilon", sa.Double(), nullable=False),
        sa.Column("delta", sa.Double(), nullable=False),
        sa.Column("target_distance", sa.Double(), nullable=False),
        sa.Column("lambda", sa.Double(), nullable=False),
        sa.Column("parts", JSON, nullable=False),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name=op.f("fk_refused_attempts_model_id")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_refused_attempts_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_refused_attempts")),
    )
    op.create_index(op.f("ix_refused_attempts_tenant_id"), "refused_attempts", ["tenant_id"])


def downgrade() -> None:
    op.drop_index(op.f("ix_refused_attempts_tenant_id"), table_name="refused_attempts")
    op.drop_table("refused_attempts")

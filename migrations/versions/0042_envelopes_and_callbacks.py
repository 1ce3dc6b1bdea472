"""Webhooks can send CloudEvents, and requests from other systems can have callbacks"""

import sqlalchemy as sa
from alembic import op

revision = "0042"
down_revision = "0041"


def upgrade() -> None:
    op.add_column(
        "webhook_endpoints",
        sa.Column("envelope", sa.String(16), nullable=False, server_default="standard"),
    )
    op.create_table(
        "request_callbacks",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("erasure_id", sa.Uuid(), nullable=False),
        sa.Column("protocol", sa.String(16), nullable=False),
        sa.Column("request_id", sa.String(100), nullable=False),
        sa.Column("url", sa.String(2000), nullable=False),
        sa.Column("token", sa.LargeBinary(), nullable=True),
        sa.Column("reported", sa.String(16), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("next_attempt_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["erasure_id"], ["erasures.id"], name=op.f("fk_request_callbacks_erasure_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_request_callbacks")),
        sa.UniqueConstraint("erasure_id", "url", name=op.f("uq_request_callbacks_erasure_id_url")),
        sa.CheckConstraint("protocol IN ('opendsr', 'fides')", name=op.f("ck_request_callbacks_protocol")),
    )
    op.create_index(op.f("ix_request_callbacks_next_attempt_at"), "request_callbacks", ["next_attempt_at"])


def downgrade() -> None:
    op.drop_index(op.f("ix_request_callbacks_next_attempt_at"), table_name="request_callbacks")
    op.drop_table("request_callbacks")
    op.drop_column("webhook_endpoints", "envelope")

"""Identifiers, salts and fingerprints are protected by data keys that can be destroyed

What is stored already is encrypted again by the next dispatcher that starts: migrations run without keys.
"""

import sqlalchemy as sa
from alembic import op

revision = "0047"
down_revision = "0046"


def upgrade() -> None:
    op.create_table(
        "data_keys",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("purpose", sa.String(length=16), nullable=False),
        sa.Column("owner_id", sa.Uuid(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("dirty_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "purpose IN ('subjects', 'receipts', 'fingerprints')", name=op.f("ck_data_keys_purpose")
        ),
        sa.CheckConstraint(
            "state IN ('pending', 'current', 'retired', 'doomed')", name=op.f("ck_data_keys_state")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_data_keys")),
    )
    op.create_index("ix_data_keys_owner_id", "data_keys", ["owner_id"])
    current = sa.text("state = 'current'")
    op.create_index(
        "uq_data_keys_current",
        "data_keys",
        ["purpose", "owner_id"],
        unique=True,
        sqlite_where=current,
        postgresql_where=current,
    )
    op.create_table(
        "destroyed_data_keys",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("owner_id", sa.Uuid(), nullable=False),
        sa.Column("destroyed_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_destroyed_data_keys")),
    )
    op.add_column("tasks", sa.Column("subject_key", sa.LargeBinary(), nullable=True))
    op.add_column("tasks", sa.Column("receipt_key", sa.LargeBinary(), nullable=True))
    for table, column in REFERENCES:
        key = sa.ForeignKey("data_keys.id", name=f"fk_{table}_{column}")
        op.add_column(table, sa.Column(column, sa.Uuid(), key, nullable=True), inline_references=True)
    for column in ("subject_key_id", "receipt_key_id"):
        needs = sa.text(f"{column} IS NOT NULL")
        op.create_index(f"ix_tasks_{column}", "tasks", [column], sqlite_where=needs, postgresql_where=needs)
    op.create_index("ix_idempotency_keys_hash_key_id", "idempotency_keys", ["hash_key_id"])


def downgrade() -> None:
    op.drop_index("ix_idempotency_keys_hash_key_id", "idempotency_keys")
    for table, column in reversed(REFERENCES):
        if table == "tasks":
            op.drop_index(f"ix_tasks_{column}", table)
        with op.batch_alter_table(table) as batch:
            batch.drop_column(column)
            if table == "tasks":
                batch.drop_column(column.removesuffix("_id"))
    op.drop_table("destroyed_data_keys")
    op.drop_table("data_keys")


REFERENCES = (
    ("tasks", "subject_key_id"),
    ("tasks", "receipt_key_id"),
    ("idempotency_keys", "hash_key_id"),
)

"""The audit log: who did what, append-only, and the signed heads of it

Triggers refuse to change or delete a row. A later migration that rebuilds one of these tables on SQLite has
to create them again.
"""

import sqlalchemy as sa
from alembic import op

revision = "0040"
down_revision = "0034"

_TABLES = ("audit_log", "audit_log_heads")
_REFUSAL = "the audit log is append-only"


def upgrade() -> None:
    op.create_table(
        "audit_log",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("action", sa.String(40), nullable=False),
        sa.Column("entry", sa.Text(), nullable=False),
        sa.Column("hash", sa.LargeBinary(32), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_audit_log_tenant_id")),
        sa.PrimaryKeyConstraint("tenant_id", "sequence", name=op.f("pk_audit_log")),
    )
    op.create_table(
        "audit_log_heads",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("size", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("envelope", sa.LargeBinary(), nullable=False),
        sa.Column("log_index", sa.BigInteger(), nullable=False),
        sa.Column("signed_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_audit_log_heads_tenant_id")),
        sa.PrimaryKeyConstraint("tenant_id", "size", name=op.f("pk_audit_log_heads")),
        sa.UniqueConstraint("log_index", name=op.f("uq_audit_log_heads_log_index")),
    )
    _refuse_changes()


def downgrade() -> None:
    op.drop_table("audit_log_heads")
    op.drop_table("audit_log")
    if op.get_bind().dialect.name != "sqlite":
        op.execute("DROP FUNCTION refuse_audit_log_change()")


def _refuse_changes() -> None:
    if op.get_bind().dialect.name == "sqlite":
        for table in _TABLES:
            for verb in ("update", "delete"):
                op.execute(
                    f"CREATE TRIGGER {table}_refuse_{verb} BEFORE {verb.upper()} ON {table} "
                    f"BEGIN SELECT RAISE(ABORT, '{_REFUSAL}'); END"
                )
        return
    op.execute(
        "CREATE FUNCTION refuse_audit_log_change() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION '{_REFUSAL}'; END $$"
    )
    for table in _TABLES:
        op.execute(
            f"CREATE TRIGGER {table}_refuse_change BEFORE UPDATE OR DELETE ON {table} "
            "FOR EACH ROW EXECUTE FUNCTION refuse_audit_log_change()"
        )
        op.execute(
            f"CREATE TRIGGER {table}_refuse_truncate BEFORE TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_audit_log_change()"
        )

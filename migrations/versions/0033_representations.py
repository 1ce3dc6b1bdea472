"""Models can have a representation: files, features beside each part, a library, and advice as a report"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0033"
down_revision = "0032"

_JSON = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")

# Table and column of each list of allowed values, before and after.
_CHECKS = {
    ("jobs", "kind"): (
        ("register", "unlearn", "append", "evaluate", "audit"),
        ("register", "unlearn", "append", "evaluate", "audit", "advise"),
    ),
    ("reports", "kind"): (
        ("evaluation", "audit", "membership"),
        ("evaluation", "audit", "membership", "advice"),
    ),
    ("model_files", "kind"): (
        ("weights", "anchor"),
        ("weights", "anchor", "representation", "tokenizer"),
    ),
    ("dataset_imports", "role"): (
        ("train", "holdout"),
        ("train", "holdout", "representation", "tokenizer"),
    ),
}


def upgrade() -> None:
    _allow(1)
    op.add_column("dataset_parts", sa.Column("features_path", sa.String(500), nullable=True))
    op.add_column("dataset_parts", sa.Column("features_sha256", sa.String(64), nullable=True))
    op.add_column("dataset_parts", sa.Column("features_size", sa.BigInteger(), nullable=True))
    op.add_column("dataset_parts", sa.Column("features_of", sa.String(64), nullable=True))
    op.create_index(op.f("ix_dataset_parts_features_path"), "dataset_parts", ["features_path"], unique=True)
    op.add_column("models", sa.Column("progress", _JSON, nullable=True))
    op.create_table(
        "library_representations",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("declaration", _JSON, nullable=False),
        sa.Column("graph_path", sa.String(500), nullable=False),
        sa.Column("graph_sha256", sa.String(64), nullable=False),
        sa.Column("graph_size", sa.BigInteger(), nullable=False),
        sa.Column("tokenizer_path", sa.String(500), nullable=True),
        sa.Column("tokenizer_sha256", sa.String(64), nullable=True),
        sa.Column("tokenizer_size", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_library_representations"),
        sa.UniqueConstraint("name", name="uq_library_representations_name"),
        sa.UniqueConstraint("graph_path", name="uq_library_representations_graph_path"),
        sa.UniqueConstraint("tokenizer_path", name="uq_library_representations_tokenizer_path"),
    )


def downgrade() -> None:
    """Drop representations. Rows of kinds that the code before does not know must be gone by then."""
    op.drop_table("library_representations")
    op.drop_column("models", "progress")
    op.drop_index(op.f("ix_dataset_parts_features_path"), "dataset_parts")
    for name in ("features_path", "features_sha256", "features_size", "features_of"):
        op.drop_column("dataset_parts", name)
    _allow(0)


def _allow(which: int) -> None:
    for (table_name, column), lists in _CHECKS.items():
        values = ", ".join(f"'{value}'" for value in lists[which])
        name = op.f(f"ck_{table_name}_{column}")
        with op.batch_alter_table(table_name) as table:
            table.drop_constraint(name, type_="check")
            table.create_check_constraint(name, f"{column} IN ({values})")

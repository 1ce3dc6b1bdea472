"""Erasures are listed in order, by reference and by deadline, and counted, without reading every row"""

import sqlalchemy as sa
from alembic import op

revision = "0034"
down_revision = "0033"

_TASKS = {
    "ix_tasks_open_due_at": ["due_at", "erasure_id"],
    "ix_tasks_open_model_id": ["model_id", "state", "due_at"],
}
_OPEN = sa.text("state NOT IN ('completed', 'withdrawn')")


def upgrade() -> None:
    op.create_index("ix_erasures_tenant_id_id", "erasures", ["tenant_id", "id"])
    op.create_index("ix_erasures_tenant_id_reference_id", "erasures", ["tenant_id", "reference", "id"])
    op.create_index("ix_batches_state", "batches", ["state"])
    op.create_index("ix_certificates_mechanism", "certificates", ["mechanism"])
    for name, columns in _TASKS.items():
        op.create_index(name, "tasks", columns, sqlite_where=_OPEN, postgresql_where=_OPEN)


def downgrade() -> None:
    for name in _TASKS:
        op.drop_index(name, "tasks")
    op.drop_index("ix_certificates_mechanism", "certificates")
    op.drop_index("ix_batches_state", "batches")
    op.drop_index("ix_erasures_tenant_id_reference_id", "erasures")
    op.drop_index("ix_erasures_tenant_id_id", "erasures")

"""People are counted by a keyed hash; "no data held" statements have a place in the log; near matches

Salts and statements that are stored already are encrypted by the next worker that starts: migrations run
without the deployment key.
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("task_subjects", sa.Column("person", sa.LargeBinary(length=16), nullable=True))
    op.add_column("task_subjects", sa.Column("identifier_rule", sa.String(length=16), nullable=True))
    op.add_column("task_subjects", sa.Column("log_index", sa.BigInteger(), nullable=True))
    op.add_column("log_head", sa.Column("statements", sa.BigInteger(), nullable=True))
    op.add_column("tasks", sa.Column("near_matches", sa.Integer(), nullable=True))


def downgrade() -> None:
    op.drop_column("tasks", "near_matches")
    op.drop_column("log_head", "statements")
    op.drop_column("task_subjects", "log_index")
    op.drop_column("task_subjects", "identifier_rule")
    op.drop_column("task_subjects", "person")

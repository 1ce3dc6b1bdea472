"""Messages in the outbox name one function for every kind of job"""

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"

RUN = "worker.queue.run"

jobs = sa.table("jobs", sa.column("id", sa.Uuid()), sa.column("kind", sa.String()))
outbox = sa.table("outbox", sa.column("job_id", sa.Uuid()), sa.column("function", sa.String()))


def upgrade() -> None:
    _rename(sa.literal(RUN))


def downgrade() -> None:
    """Name the function after the job's kind again, as the code before did."""
    kind = sa.select(jobs.c.kind).where(jobs.c.id == outbox.c.job_id).scalar_subquery()
    _rename(sa.literal("worker.jobs.") + kind)


def _rename(function: sa.ColumnElement[str]) -> None:
    """Rewrite the messages that wait to be sent. Code of the other release drops a name it does not know,
    and the dispatcher announces the job again."""
    op.get_bind().execute(sa.update(outbox).values(function=function))

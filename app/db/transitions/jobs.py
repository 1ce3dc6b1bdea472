"""Jobs: their creation, their queue messages, and the token of the attempt that may write for them."""

from collections.abc import Callable
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import Select, select, update
from sqlalchemy.orm import Session

from app.core.clock import new_id
from app.db.session import Database
from app.db.states import JobKind, JobState
from app.db.tables import Job, OutboxMessage

UNDATED = timedelta(days=30)  # for jobs without a legal deadline: about that of an erasure received now
RUN = "worker.queue.run"  # the function that every queue message names; the job's row says what to run


class TokenLost(Exception):
    """Raised when the attempt no longer owns its job. It must stop without writing anything more."""


def create_job(session: Session, kind: JobKind, model_id: UUID, now: datetime) -> Job:
    """Add a job that waits to be queued. It is due after `UNDATED`, unless its batch has a deadline."""
    job = Job(id=new_id(), kind=kind, model_id=model_id, run_after=now, due_at=now + UNDATED, created_at=now)
    session.add(job)
    session.flush()
    return job


def announce(session: Session, job: Job) -> None:
    """Add a message about the job's current attempt to the outbox."""
    assert job.token is not None
    session.add(OutboxMessage(function=RUN, job_id=job.id, token=job.token))


def heartbeat(session: Session, job_id: UUID, token: UUID, now: datetime) -> None:
    """Record that the attempt with this token is alive. Raise `TokenLost` if it no longer owns the job."""
    alive = session.execute(
        update(Job)
        .where(Job.id == job_id, Job.token == token, Job.state == JobState.RUNNING)
        .values(heartbeat_at=now)
        .returning(Job.id)
    ).scalar()
    if alive is None:
        raise TokenLost


# The same conditional write. It locks the job's row, so the token stays valid until the transaction ends.
fence = heartbeat


def owns_job(session: Session, job_id: UUID, token: UUID) -> bool:
    """Return whether the attempt with this token owns the job. It takes no lock: this may change at once."""
    holder = select(Job.id).where(Job.id == job_id, Job.token == token, Job.state == JobState.RUNNING)
    return session.scalar(holder) is not None


def finish_job(session: Session, job_id: UUID, token: UUID, now: datetime) -> None:
    """running → done, by the attempt with this token. Raise `TokenLost` if it no longer owns the job."""
    fence(session, job_id, token, now)
    job = session.get_one(Job, job_id)
    job.state, job.finished_at, job.token = JobState.DONE, now, None
    job.error = job.failure_cause = None
    forget_faults(job)


def forget_faults(job: Job) -> None:
    """Start counting faults of the infrastructure from zero: the job has reached something lasting."""
    job.faults = job.deaths = 0
    job.faulty_since = job.delay_told_at = None


def change_jobs(database: Database, jobs: Select[Job], change: Callable[[Session, Job], None]) -> None:
    """Apply `change` to every selected job with its row locked. If none is selected, write nothing.

    The conditions of `jobs` are on the locked row itself, so PostgreSQL checks them again once the lock is
    held. Rows that another process has locked are skipped, and the caller's next round finds them.
    """
    with database.reading() as session:
        if session.scalar(jobs.limit(1)) is None:
            return
    with database.writing() as session:
        for job in session.scalars(jobs.with_for_update(of=Job, skip_locked=True)).all():
            change(session, job)

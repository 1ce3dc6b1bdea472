"""A job by itself: one piece of work, and the token of the attempt that may write on its behalf."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from app.clock import new_id
from app.db.states import JobKind, JobState
from app.db.tables import Job, OutboxMessage

FUNCTION = {kind: f"worker.jobs.{kind}" for kind in JobKind}


class TokenLost(Exception):
    """Another attempt holds the job now; this one must stop without a trace."""


def create_job(session: Session, kind: JobKind, model_id: UUID, now: datetime) -> Job:
    job = Job(id=new_id(), kind=kind, model_id=model_id, run_after=now, created_at=now)
    session.add(job)
    session.flush()
    return job


def announce(session: Session, job: Job) -> None:
    assert job.token is not None
    session.add(OutboxMessage(function=FUNCTION[JobKind(job.kind)], job_id=job.id, token=job.token))


def heartbeat(session: Session, job_id: UUID, token: UUID, now: datetime) -> None:
    alive = session.execute(
        update(Job)
        .where(Job.id == job_id, Job.token == token, Job.state == JobState.RUNNING)
        .values(heartbeat_at=now)
        .returning(Job.id)
    ).scalar()
    if alive is None:
        raise TokenLost


fence = heartbeat  # the same conditional write; its row lock holds until the transaction ends


def holds(session: Session, job_id: UUID, token: UUID) -> bool:
    """A look without a write; what it says may be over by the time it is heard."""
    mine = select(Job.id).where(Job.id == job_id, Job.token == token, Job.state == JobState.RUNNING)
    return session.scalar(mine) is not None


def finish_job(session: Session, job_id: UUID, token: UUID, now: datetime) -> None:
    fence(session, job_id, token, now)
    job = session.get_one(Job, job_id)
    job.state, job.finished_at, job.token, job.error = JobState.DONE, now, None, None

"""Attempts at a job, and what follows from them for its batch or model."""

from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import ColumnElement, and_, delete, select, update
from sqlalchemy.orm import Session

from app.clock import new_id
from app.db import refusals
from app.db.states import BatchState, HeldReason, JobKind, JobState, TaskState
from app.db.tables import Batch, HeldDraw, Job, Model, OutboxMessage, Task
from app.db.transitions.batches import add_event, hold_batch, refuse_append
from app.db.transitions.jobs import announce
from app.db.transitions.models import reject_model

LONGEST_BACKOFF = timedelta(minutes=5)
BATCH_JOBS = (JobKind.UNLEARN, JobKind.APPEND)
CANCELLED = "cancelled by its owner"


def dispatch(session: Session, job: Job, now: datetime) -> None:
    """waiting → queued: a new attempt with a new token, announced through the outbox."""
    job.state, job.attempt, job.token, job.queued_at = JobState.QUEUED, job.attempt + 1, new_id(), now
    job.heartbeat_at = None
    _follow(session, job, BatchState.QUEUED, now)
    announce(session, job)


def is_claimable(session: Session, job_id: UUID, token: UUID) -> bool:
    """Whether a claim would be granted now."""
    return session.scalar(select(Job.id).where(_claimable(job_id, token))) is not None


def claim(session: Session, job_id: UUID, token: UUID, now: datetime) -> bool:
    """queued → running, for exactly one of any number of deliveries of one message."""
    won = session.execute(
        update(Job)
        .where(_claimable(job_id, token))
        .values(state=JobState.RUNNING, heartbeat_at=now)
        .returning(Job.id)
    ).scalar()
    if won is None:
        return False
    _follow(session, session.get_one(Job, job_id), BatchState.RUNNING, now)
    return True


def _claimable(job_id: UUID, token: UUID) -> ColumnElement[bool]:
    return and_(Job.id == job_id, Job.token == token, Job.state == JobState.QUEUED)


def attempt_failed(
    session: Session, job: Job, *, error: str, now: datetime, max_attempts: int, backoff: float
) -> None:
    """running → waiting with backoff, or failed when the attempts are used up.

    A batch that is purging never fails: its version is published, so the clean-up is tried until it succeeds.
    """
    job.token, job.error = None, error[:1000]
    session.execute(delete(OutboxMessage).where(OutboxMessage.job_id == job.id))
    if job.attempt < max_attempts or _is_published(session, job):
        job.state, job.run_after = JobState.WAITING, now + backoff_after(job.attempt, backoff)
        _follow(session, job, BatchState.SEALED, now)
        return
    job.state, job.finished_at = JobState.FAILED, now
    if _holds_draw(session, job):
        _hold_unpublished(session, job, now)
    elif job.kind == JobKind.REGISTER:
        reject_model(session, session.get_one(Model, job.model_id), [f"validation failed: {job.error}"])
    elif job.kind in BATCH_JOBS:  # a report is as far as its job: there is nothing to tell it
        _fail_batch(session, job)


def backoff_after(attempt: int, first: float) -> timedelta:
    """Doubles from attempt to attempt, up to a limit."""
    doublings = min(attempt - 1, 30)  # attempts at a clean-up are not counted out, and 2.0**1024 overflows
    return min(timedelta(seconds=min(first, 300.0) * 2.0**doublings), LONGEST_BACKOFF)


def cancel(session: Session, job: Job, batch: Batch, now: datetime) -> None:
    """waiting, queued or running → done, by its owner; the job's row is locked, as by whoever works on it.

    An attempt under way loses its token with this and can write nothing any more. The requests stay open: a
    held batch is tried again when its owner says so. An append ends at once, and its parts stay staged.
    """
    session.execute(delete(OutboxMessage).where(OutboxMessage.job_id == job.id))
    job.state, job.finished_at, job.token, job.error = JobState.DONE, now, None, None
    batch.step = batch.progress = None
    if job.kind == JobKind.APPEND:
        refuse_append(session, batch, CANCELLED, now)
    else:
        hold_batch(session, batch, HeldReason.CANCELLED, CANCELLED, now)


def has_drawn(session: Session, batch: Batch) -> bool:
    """Also while an attempt is at the step that draws: what it has drawn is recorded a moment later."""
    if batch.state == BatchState.RUNNING and batch.step == "release":
        return True
    return session.get(HeldDraw, batch.id) is not None


def was_cancelled(session: Session, job_id: UUID) -> bool:
    """Until it is tried again."""
    ended = Batch.state.in_((BatchState.HELD, BatchState.FAILED))
    found = select(Batch.id).where(Batch.job_id == job_id, Batch.error == CANCELLED, ended)
    return session.scalar(found) is not None


def _follow(session: Session, job: Job, state: BatchState, now: datetime) -> None:
    """A batch that is purging stays so: its model is published, only the clean-up is tried again."""
    batch = session.scalar(select(Batch).where(Batch.job_id == job.id))
    if batch is None:
        return
    if batch.state != BatchState.PURGING:
        batch.state = state
        if state != BatchState.RUNNING:  # nobody is at any step now
            batch.step = batch.progress = None
        add_event(session, batch.id, "state", {"state": state, "attempt": job.attempt}, now)
    if state == BatchState.RUNNING:
        session.execute(update(Task).where(Task.batch_id == batch.id).values(state=TaskState.RUNNING))


def _is_published(session: Session, job: Job) -> bool:
    return session.scalar(select(Batch.state).where(Batch.job_id == job.id)) == BatchState.PURGING


def _holds_draw(session: Session, job: Job) -> bool:
    query = select(HeldDraw.batch_id).join(Batch, Batch.id == HeldDraw.batch_id).where(Batch.job_id == job.id)
    return session.scalar(query) is not None


def _hold_unpublished(session: Session, job: Job, now: datetime) -> None:
    """A draw that exists counts, whatever went wrong after it: its owner publishes or discards it."""
    batch = session.scalars(select(Batch).where(Batch.job_id == job.id)).one()
    session.execute(update(HeldDraw).where(HeldDraw.batch_id == batch.id).values(decision=None))
    hold_batch(session, batch, HeldReason.UNPUBLISHED, job.error or "", now)


def _fail_batch(session: Session, job: Job) -> None:
    batch = session.scalars(select(Batch).where(Batch.job_id == job.id)).one()
    assert job.finished_at is not None
    batch.state, batch.error = BatchState.FAILED, job.error
    refusals.record_refused_batch(session, batch, "failed")
    session.execute(update(Task).where(Task.batch_id == batch.id).values(state=TaskState.FAILED))
    add_event(session, batch.id, "failed", {"error": job.error}, job.finished_at)

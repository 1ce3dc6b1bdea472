"""State changes of jobs by attempts, and their effect on the job's batch or model."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import ColumnElement, and_, delete, func, select, update
from sqlalchemy.orm import Session

from app.core.clock import new_id
from app.db import refusals
from app.db.states import (
    BatchState,
    BatchStep,
    EventKind,
    FailureCause,
    HeldReason,
    JobKind,
    JobState,
    RefusalReason,
    TaskState,
)
from app.db.tables import Batch, DrawRecord, Job, Model, OutboxMessage, Task
from app.db.transitions.batches import add_event, hold_batch, refuse_append
from app.db.transitions.jobs import announce, forget_faults
from app.db.transitions.models import reject_model

LONGEST_BACKOFF = timedelta(minutes=5)
MAX_DEATHS = 10
PATIENCE = timedelta(days=3)  # how long faults may keep a job waiting that is not an erasure
DELAY_TOLD_AFTER = timedelta(minutes=10)
DELAY_TOLD_EVERY = timedelta(days=1)
BATCH_JOBS = (JobKind.UNLEARN, JobKind.APPEND)
CANCELLED = "cancelled by its owner"


def dispatch(session: Session, job: Job, now: datetime) -> None:
    """waiting → queued: begin a new attempt with a new token, and announce it through the outbox."""
    job.state, job.attempt, job.token, job.queued_at = JobState.QUEUED, job.attempt + 1, new_id(), now
    job.heartbeat_at = None
    _follow(session, job, BatchState.QUEUED, now)
    announce(session, job)


def is_claimable(session: Session, job_id: UUID, token: UUID) -> bool:
    """Return whether `claim` would succeed now."""
    return session.scalar(select(Job.id).where(_claimable(job_id, token))) is not None


def claim(session: Session, job_id: UUID, token: UUID, now: datetime) -> bool:
    """queued → running. Return True for exactly one of any number of deliveries of the same message."""
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
    session: Session,
    job: Job,
    *,
    cause: FailureCause,
    error: str,
    now: datetime,
    max_attempts: int,
    backoff: float,
    max_deaths: int = MAX_DEATHS,
) -> None:
    """running → waiting, to be retried after a backoff, or failed if it is not to be retried.

    A job has `max_attempts` errors of its own. An erasure is retried after any number of faults of the
    infrastructure, and its history says so if they last. Other jobs end after `max_deaths` processes that
    died in a row, or `PATIENCE`: an append that never ends would keep the erasures of its model waiting.

    A batch that is purging never fails: its version is published, so the purge is retried until it succeeds.
    A batch whose noise is drawn is held instead of failed, because a draw that exists must be accounted for.
    """
    cause = FailureCause(cause)
    job.token, job.error, job.failure_cause = None, error[:1000], cause
    session.execute(delete(OutboxMessage).where(OutboxMessage.job_id == job.id))
    _count_failure(job, cause, now)
    if _is_published(session, job) or _may_be_retried(job, cause, now, max_attempts, max_deaths):
        wait = backoff_after(job.faults if cause.is_fault else job.errors, backoff)
        job.state, job.run_after = JobState.WAITING, now + wait
        _follow(session, job, BatchState.SEALED, now)
        _tell_of_delay(session, job, now, max_deaths)
        return
    _end_failed_job(session, job, now)


def _count_failure(job: Job, cause: FailureCause, now: datetime) -> None:
    if cause.is_fault:
        job.faults, job.faulty_since = job.faults + 1, job.faulty_since or now
    else:
        job.errors += 1
        forget_faults(job)
    job.deaths = job.deaths + 1 if cause.is_death else 0


def _may_be_retried(job: Job, cause: FailureCause, now: datetime, max_attempts: int, max_deaths: int) -> bool:
    if not cause.is_fault:
        return job.errors < max_attempts
    if job.kind == JobKind.UNLEARN:
        return True
    assert job.faulty_since is not None
    return job.deaths < max_deaths and now - job.faulty_since < PATIENCE


def _tell_of_delay(session: Session, job: Job, now: datetime, max_deaths: int) -> None:
    """Add an event if faults have delayed the job's batch for a while, once a day as long as they last."""
    batch = session.scalar(select(Batch).where(Batch.job_id == job.id))
    if batch is None or job.faulty_since is None:
        return
    lasting = job.deaths >= max_deaths or now - job.faulty_since >= DELAY_TOLD_AFTER
    if not lasting or (job.delay_told_at is not None and now - job.delay_told_at < DELAY_TOLD_EVERY):
        return
    job.delay_told_at = now
    due = session.scalar(select(func.min(Task.due_at)).where(Task.batch_id == batch.id))
    details = {
        "cause": job.failure_cause,
        "since": job.faulty_since.isoformat(),
        "attempts": job.faults,
        "overdue": due is not None and due < now,
    }
    add_event(session, batch.id, EventKind.DELAYED, details, now)


def _end_failed_job(session: Session, job: Job, now: datetime) -> None:
    """running → failed, for the job. Its batch, model or report ends with it."""
    job.state, job.finished_at = JobState.FAILED, now
    if _has_draw_record(session, job):
        _hold_unpublished(session, job, now)
    elif job.kind == JobKind.REGISTER:
        reject_model(session, session.get_one(Model, job.model_id), [f"validation failed: {job.error}"])
    elif job.kind == JobKind.ADVISE:
        session.get_one(Model, job.model_id).progress = None
    elif job.kind in BATCH_JOBS:  # a report has no state of its own: it follows its job
        _fail_batch(session, job)


def hand_back(session: Session, job: Job, now: datetime) -> None:
    """running → waiting, due at once. The attempt does not count: replacing a worker is not a failure."""
    session.execute(delete(OutboxMessage).where(OutboxMessage.job_id == job.id))
    job.state, job.token, job.run_after, job.attempt = JobState.WAITING, None, now, job.attempt - 1
    _follow(session, job, BatchState.SEALED, now)


def backoff_after(attempt: int, first: float) -> timedelta:
    """Return the wait after this attempt: `first` seconds, doubled with each attempt, up to a limit."""
    doublings = min(attempt - 1, 30)  # a purge is retried without limit, and 2.0**1024 overflows
    return min(timedelta(seconds=min(first, 300.0) * 2.0**doublings), LONGEST_BACKOFF)


def cancel(
    session: Session, job: Job, batch: Batch, now: datetime, decided: Mapping[str, str] | None = None
) -> None:
    """waiting, queued or running → done, on the owner's request. The caller holds the lock on the job's row.

    A running attempt loses its token and can write nothing more. The batch is held, and its requests stay
    open until the owner retries it. An append fails instead, and its parts stay staged. `decided` says who
    cancelled it and why.
    """
    session.execute(delete(OutboxMessage).where(OutboxMessage.job_id == job.id))
    job.state, job.finished_at, job.token = JobState.DONE, now, None
    job.error = job.failure_cause = None
    batch.step = batch.progress = None
    if job.kind == JobKind.APPEND:
        refuse_append(session, batch, CANCELLED, now, cancelled=True, decided=decided)
    else:
        hold_batch(session, batch, HeldReason.CANCELLED, CANCELLED, now, decided)


def has_drawn(session: Session, batch: Batch) -> bool:
    """Return whether noise has been drawn for the batch.

    An attempt that is at the release step counts as well: it records its draw a moment later.
    """
    if batch.state == BatchState.RUNNING and batch.step == BatchStep.RELEASE:
        return True
    return session.get(DrawRecord, batch.id) is not None


def was_cancelled(session: Session, job_id: UUID) -> bool:
    """Return whether the job's batch was cancelled by its owner and not retried since."""
    ended = Batch.state.in_((BatchState.HELD, BatchState.FAILED))
    cancelled = select(Batch.id).where(Batch.job_id == job_id, Batch.cancelled, ended)
    return session.scalar(cancelled) is not None


def _follow(session: Session, job: Job, state: BatchState, now: datetime) -> None:
    """Let the job's batch, if it has one, follow into `state`.

    A batch that is purging stays so: its version is published, and only the purge is retried.
    """
    batch = session.scalar(select(Batch).where(Batch.job_id == job.id))
    if batch is None:
        return
    if batch.state != BatchState.PURGING:
        batch.state = state
        if state == BatchState.RUNNING:
            batch.attempts_started += 1
        else:  # no attempt is running, so none is at a step
            batch.step = batch.progress = None
        add_event(session, batch.id, EventKind.STATE, {"state": state, "attempt": job.attempt}, now)
    if state == BatchState.RUNNING:
        session.execute(update(Task).where(Task.batch_id == batch.id).values(state=TaskState.RUNNING))


def _is_published(session: Session, job: Job) -> bool:
    return session.scalar(select(Batch.state).where(Batch.job_id == job.id)) == BatchState.PURGING


def _has_draw_record(session: Session, job: Job) -> bool:
    query = (
        select(DrawRecord.batch_id).join(Batch, Batch.id == DrawRecord.batch_id).where(Batch.job_id == job.id)
    )
    return session.scalar(query) is not None


def _hold_unpublished(session: Session, job: Job, now: datetime) -> None:
    """Hold the batch with its draw, for the owner to publish or discard. It is never drawn again."""
    batch = session.scalars(select(Batch).where(Batch.job_id == job.id)).one()
    session.execute(update(DrawRecord).where(DrawRecord.batch_id == batch.id).values(decision=None))
    hold_batch(session, batch, HeldReason.UNPUBLISHED, job.error or "", now)


def _fail_batch(session: Session, job: Job) -> None:
    """any → failed, for the batch and its tasks."""
    batch = session.scalars(select(Batch).where(Batch.job_id == job.id)).one()
    assert job.finished_at is not None
    batch.state, batch.error, batch.cancelled = BatchState.FAILED, job.error, False
    refusals.record_refused_batch(session, batch, RefusalReason.FAILED)
    session.execute(update(Task).where(Task.batch_id == batch.id).values(state=TaskState.FAILED))
    add_event(session, batch.id, EventKind.FAILED, {"error": job.error}, job.finished_at)

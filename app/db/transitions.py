"""Every change of state of a model, job, batch and task, for the gateway, the dispatcher and the worker.

A job is what a worker does; a batch's state follows its job's. Each attempt at a job carries a fencing
token: whoever writes on behalf of an attempt calls `fence` first, in the same transaction, and loses when
a later attempt has begun. A message may arrive twice or never: `claim` lets exactly one through, and the
dispatcher sends again what was not claimed.
"""

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from app.clock import new_id
from app.db import receipts
from app.db.states import (
    OPEN_BATCH,
    BatchState,
    Decision,
    HeldReason,
    JobKind,
    JobState,
    ModelState,
    TaskState,
)
from app.db.tables import Batch, BatchEvent, HeldDraw, Job, Model, OutboxMessage, Task

LONGEST_BACKOFF = timedelta(minutes=5)
BATCH_JOBS = (JobKind.UNLEARN, JobKind.APPEND)
FUNCTION = {kind: f"worker.jobs.{kind}" for kind in JobKind}


class TokenLost(Exception):
    """Another attempt holds the job now; this one must stop without a trace."""


# Jobs


def create_job(session: Session, kind: JobKind, model_id: UUID, now: datetime) -> Job:
    job = Job(id=new_id(), kind=kind, model_id=model_id, run_after=now, created_at=now)
    session.add(job)
    session.flush()
    return job


def dispatch(session: Session, job: Job, now: datetime) -> None:
    """waiting → queued: a new attempt with a new token, announced through the outbox."""
    job.state, job.attempt, job.token, job.queued_at = JobState.QUEUED, job.attempt + 1, new_id(), now
    job.heartbeat_at = None
    _follow(session, job, BatchState.QUEUED, now)
    announce(session, job)


def announce(session: Session, job: Job) -> None:
    assert job.token is not None
    session.add(OutboxMessage(function=FUNCTION[JobKind(job.kind)], job_id=job.id, token=job.token))


def claim(session: Session, job_id: UUID, token: UUID, now: datetime) -> bool:
    """queued → running, for exactly one of any number of deliveries of one message."""
    won = session.execute(
        update(Job)
        .where(Job.id == job_id, Job.token == token, Job.state == JobState.QUEUED)
        .values(state=JobState.RUNNING, heartbeat_at=now)
        .returning(Job.id)
    ).scalar()
    if won is None:
        return False
    _follow(session, session.get_one(Job, job_id), BatchState.RUNNING, now)
    return True


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


def finish_job(session: Session, job_id: UUID, token: UUID, now: datetime) -> None:
    fence(session, job_id, token, now)
    job = session.get_one(Job, job_id)
    job.state, job.finished_at, job.token, job.error = JobState.DONE, now, None, None


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


# Batches


def waiting_subjects(session: Session, model_id: UUID) -> tuple[int, datetime | None, datetime | None]:
    """How many subjects wait for this model, since when, and the nearest deadline."""
    row = session.execute(
        select(
            func.coalesce(func.sum(Task.subjects), 0), func.min(Task.created_at), func.min(Task.due_at)
        ).where(Task.model_id == model_id, Task.batch_id.is_(None), Task.state == TaskState.RECEIVED)
    ).one()
    return int(row[0]), row[1], row[2]


def has_open_batch(session: Session, model_id: UUID) -> bool:
    open_batch = select(Batch.id).where(Batch.model_id == model_id, Batch.state.in_(OPEN_BATCH))
    return session.scalar(open_batch) is not None


def seal(session: Session, model: Model, *, because: str, now: datetime) -> Batch | None:
    """Assign every waiting task of the model to a new batch in one UPDATE; None when nothing waits."""
    if has_open_batch(session, model.id):
        return None
    job = create_job(session, JobKind.UNLEARN, model.id, now)
    batch = _new_batch(session, model, job, because=because, now=now)
    taken = session.execute(
        update(Task)
        .where(Task.model_id == model.id, Task.batch_id.is_(None), Task.state == TaskState.RECEIVED)
        .values(batch_id=batch.id, state=TaskState.BATCHED)
        .returning(Task.subjects)
    ).scalars()
    batch.subjects = sum(taken)
    model.flush_requested = False
    if not batch.subjects:
        session.delete(batch)
        session.flush()
        session.delete(job)
        return None
    add_event(session, batch.id, "sealed", {"because": because, "subjects": batch.subjects}, now)
    return batch


def start_append(session: Session, model: Model, now: datetime) -> Batch:
    """A batch without requests: the model's rows grow, and are fitted, noised and certified like any release.

    Being a batch, it takes the model's one place: neither an erasure nor another append runs beside it.
    """
    batch = _new_batch(
        session, model, create_job(session, JobKind.APPEND, model.id, now), because="append", now=now
    )
    add_event(session, batch.id, "sealed", {"because": "append", "subjects": 0}, now)
    return batch


def _new_batch(session: Session, model: Model, job: Job, *, because: str, now: datetime) -> Batch:
    """It keeps the policy of this moment: a later change of the model's policy does not reach it."""
    batch = Batch(
        id=new_id(),
        model_id=model.id,
        job_id=job.id,
        sealed_because=because,
        policy=dict(model.manifest["policy"]),
        subjects=0,
        sealed_at=now,
    )
    session.add(batch)
    session.flush()
    return batch


def batch_step(session: Session, batch: Batch, step: str, now: datetime) -> None:
    batch.step = step
    add_event(session, batch.id, "step", {"step": step}, now)


def batch_purging(session: Session, batch: Batch, now: datetime) -> None:
    batch.state = BatchState.PURGING
    batch_step(session, batch, "purge", now)


def hold_batch(session: Session, batch: Batch, reason: HeldReason, detail: str, now: datetime) -> None:
    batch.state, batch.held_reason, batch.error = BatchState.HELD, reason, detail[:1000]
    add_event(session, batch.id, "held", {"reason": reason, "detail": detail}, now)


def decide(session: Session, batch: Batch, draw: HeldDraw, decision: Decision, now: datetime) -> None:
    """held → sealed: a worker publishes exactly this draw, or destroys and records it."""
    draw.decision = decision
    _reopen(session, batch, now)
    add_event(session, batch.id, str(decision), {}, now)


def retry(session: Session, batch: Batch, policy: dict[str, Any], now: datetime) -> None:
    """held or failed → sealed, from the start, under the policy of this moment."""
    batch.policy = policy
    _reopen(session, batch, now)
    add_event(session, batch.id, "retry", {}, now)


def discarded(session: Session, batch: Batch, now: datetime) -> None:
    """The draw is destroyed and counted; the requests stay open until the batch is tried again."""
    batch.state, batch.error, batch.step = BatchState.FAILED, "the draw was discarded by its owner", None
    session.execute(update(Task).where(Task.batch_id == batch.id).values(state=TaskState.FAILED))
    add_event(session, batch.id, "discarded", {}, now)


def _reopen(session: Session, batch: Batch, now: datetime) -> None:
    job = session.get_one(Job, batch.job_id, with_for_update=True)
    job.state, job.attempt, job.token, job.run_after = JobState.WAITING, 0, None, now
    job.error, job.finished_at = None, None
    batch.state, batch.held_reason, batch.error = BatchState.SEALED, None, None
    session.execute(update(Task).where(Task.batch_id == batch.id).values(state=TaskState.BATCHED))
    session.flush()


def refuse_append(session: Session, batch: Batch, detail: str, now: datetime) -> None:
    """An append that cannot be certified ends at once: holding the model's place would hold up erasures."""
    batch.state, batch.error, batch.step = BatchState.FAILED, detail[:1000], None
    add_event(session, batch.id, "failed", {"error": batch.error}, now)


def complete_batch(session: Session, batch: Batch, now: datetime) -> None:
    batch.state, batch.completed_at, batch.step, batch.progress = BatchState.COMPLETED, now, None, None
    # How the solve went is a function of the data, and of no use any more.
    session.execute(delete(BatchEvent).where(BatchEvent.batch_id == batch.id, BatchEvent.kind == "progress"))
    ended = {"state": TaskState.COMPLETED, "completed_at": now, "receipts_until": receipts.until(batch, now)}
    session.execute(update(Task).where(Task.batch_id == batch.id).values(ended))
    add_event(session, batch.id, "completed", {}, now)


def add_event(session: Session, batch_id: UUID, kind: str, data: dict[str, Any], now: datetime) -> None:
    session.add(BatchEvent(batch_id=batch_id, kind=kind, data=data, at=now))


# Models


def start_validation(session: Session, model: Model, now: datetime) -> Job:
    model.state, model.reasons = ModelState.VALIDATING, []
    return create_job(session, JobKind.REGISTER, model.id, now)


def accept_model(session: Session, model: Model, report: dict[str, Any]) -> None:
    model.state, model.report = ModelState.READY, report
    session.flush()


def reject_model(session: Session, model: Model, reasons: list[str]) -> None:
    model.state, model.reasons = ModelState.REJECTED, reasons
    session.flush()


def retire_model(session: Session, model: Model) -> None:
    model.state = ModelState.RETIRED
    session.flush()


# Consequences


def _follow(session: Session, job: Job, state: BatchState, now: datetime) -> None:
    """A batch that is purging stays so: its model is published, only the clean-up is tried again."""
    batch = session.scalar(select(Batch).where(Batch.job_id == job.id))
    if batch is None:
        return
    if batch.state != BatchState.PURGING:
        batch.state = state
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
    session.execute(update(Task).where(Task.batch_id == batch.id).values(state=TaskState.FAILED))
    add_event(session, batch.id, "failed", {"error": job.error}, job.finished_at)

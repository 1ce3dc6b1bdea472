"""State changes of batches and of the tasks in them."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, delete, func, select, update
from sqlalchemy.orm import Session

from app.core.clock import new_id
from app.db import receipts, refusals, webhooks
from app.db.states import (
    OPEN_BATCH,
    STEPS_ON_ROWS,
    BatchState,
    BatchStep,
    DataKeyPurpose,
    Decision,
    EventKind,
    HeldReason,
    JobKind,
    JobState,
    RefusalReason,
    SealReason,
    TaskState,
)
from app.db.tables import Batch, BatchEvent, DrawRecord, Job, Model, Task, TaskSubject
from app.db.transitions.data_keys import retire_data_key
from app.db.transitions.jobs import create_job, forget_faults
from lethe.policy import Policy


def waiting_requests(session: Session, model_id: UUID) -> tuple[int, datetime | None, datetime | None]:
    """Return an upper bound on the people who wait, the oldest request's time, and the next deadline.

    The bound counts a person twice if two requests name them, so no row per person has to be read. Use
    `waiting_subjects` for the exact number, which is never larger.
    """
    row = session.execute(
        select(
            func.coalesce(func.sum(Task.subjects), 0), func.min(Task.created_at), func.min(Task.due_at)
        ).where(*waits(model_id))
    ).one()
    return int(row[0]), row[1], row[2]


def waiting_subjects(session: Session, model_id: UUID) -> int:
    """Count the people whose erasure from this model waits for a batch. Reads one row per person."""
    return _people(session, *waits(model_id))


def waiting_subjects_by_model(session: Session, model_ids: Sequence[UUID]) -> Mapping[UUID, int]:
    """Count the waiting people of several models in one query. Models for which nobody waits are left out."""
    person = func.coalesce(TaskSubject.person, TaskSubject.identifier)
    rows = session.execute(
        select(Task.model_id, func.count(person.distinct()))
        .join(TaskSubject, TaskSubject.task_id == Task.id)
        .where(*waits(*model_ids))
        .group_by(Task.model_id)
    )
    return {row[0]: row[1] for row in rows}


def waits(*model_ids: UUID) -> tuple[ColumnElement[bool], ...]:
    """Return the condition that a task waits for a batch of one of these models."""
    return Task.model_id.in_(model_ids), Task.batch_id.is_(None), Task.state == TaskState.RECEIVED


def _people(session: Session, *which: ColumnElement[bool]) -> int:
    """Count the distinct people in some tasks. Rows from before the hash existed count as one person each."""
    person = func.coalesce(TaskSubject.person, TaskSubject.identifier)
    query = select(func.count(person.distinct())).join(Task, Task.id == TaskSubject.task_id).where(*which)
    return session.scalar(query) or 0


def has_mixed_data_keys(session: Session, which: Sequence[ColumnElement[bool]]) -> bool:
    """Return whether these tasks are under several data keys. Then `_people` may count someone twice."""
    keys = select(Task.subject_key_id).where(*which).distinct().limit(2)
    return len(session.scalars(keys).all()) > 1


def has_open_batch(session: Session, model_id: UUID) -> bool:
    """Return whether the model has a batch that has not ended. It can have one at most."""
    open_batch = select(Batch.id).where(Batch.model_id == model_id, Batch.state.in_(OPEN_BATCH))
    return session.scalar(open_batch) is not None


def seal(session: Session, model: Model, *, because: SealReason, now: datetime) -> Batch | None:
    """Assign all waiting tasks of the model to a new batch, in one UPDATE. Return None if nothing waits."""
    if has_open_batch(session, model.id):
        return None
    job = create_job(session, JobKind.UNLEARN, model.id, now)
    batch = _new_batch(session, model, job, because=because, now=now)
    taken = session.scalars(
        update(Task)
        .where(*waits(model.id))
        .values(batch_id=batch.id, state=TaskState.BATCHED)
        .returning(Task.due_at)
    ).all()
    job.due_at = min(taken, default=None)
    batch.subjects = _people(session, Task.batch_id == batch.id)
    model.flush_requested = False
    if not taken:
        session.delete(batch)
        session.flush()
        session.delete(job)
        return None
    # What arrives from now on gets another key, so this one can be destroyed with the batch.
    retire_data_key(session, DataKeyPurpose.SUBJECTS, model.id)
    add_event(session, batch.id, EventKind.SEALED, {"because": because, "subjects": batch.subjects}, now)
    _record_small_batch(session, batch, now)
    return batch


def _record_small_batch(session: Session, batch: Batch, now: datetime) -> None:
    """Add an event if the batch was sealed with fewer people than its policy asks for."""
    smallest = Policy.model_validate(batch.policy).smallest_batch
    if batch.subjects < smallest:
        few = {"subjects": batch.subjects, "min_batch_subjects": smallest}
        add_event(session, batch.id, EventKind.SMALL_BATCH, few, now)


def start_append(session: Session, model: Model, now: datetime) -> Batch:
    """Create a batch that adds staged rows to the model instead of erasing anyone.

    Its release is fitted, noised and certified like any other. A model has one open batch at most, so no
    erasure and no other append runs at the same time.
    """
    batch = _new_batch(
        session, model, create_job(session, JobKind.APPEND, model.id, now), because=SealReason.APPEND, now=now
    )
    add_event(session, batch.id, EventKind.SEALED, {"because": SealReason.APPEND, "subjects": 0}, now)
    return batch


def _new_batch(session: Session, model: Model, job: Job, *, because: SealReason, now: datetime) -> Batch:
    """Add a batch with a copy of the model's current policy. Later policy changes do not affect it."""
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


def batch_step(session: Session, batch: Batch, step: BatchStep, now: datetime) -> None:
    """Record that the running attempt has reached this step."""
    batch.step = step
    if step in STEPS_ON_ROWS:
        batch.rows_examined = True
    add_event(session, batch.id, EventKind.STEP, {"step": step}, now)


def batch_purging(session: Session, batch: Batch, now: datetime) -> None:
    """running → purging: the new version is published, and the erased data is deleted next."""
    batch.state = BatchState.PURGING
    forget_faults(session.get_one(Job, batch.job_id))
    batch_step(session, batch, BatchStep.PURGE, now)


def draw_recorded(session: Session, batch: Batch) -> None:
    """Note that the attempt has recorded its draw, with which every later attempt continues."""
    forget_faults(session.get_one(Job, batch.job_id))


def hold_batch(
    session: Session,
    batch: Batch,
    reason: HeldReason,
    detail: str,
    now: datetime,
    decided: Mapping[str, str] | None = None,
) -> None:
    """any → held, until its owner decides. If an attempt computed on the rows, record it as refused.

    `decided` says who put the batch on hold and why, if someone cancelled it.
    """
    batch.state, batch.held_reason, batch.error = BatchState.HELD, reason, detail[:1000]
    batch.cancelled = reason == HeldReason.CANCELLED
    refusals.record_refused_batch(session, batch, RefusalReason(reason))
    event = {"reason": reason, "detail": detail, **(decided or {})}
    add_event(session, batch.id, EventKind.HELD, event, now)


def decide(
    session: Session,
    batch: Batch,
    draw: DrawRecord,
    decision: Decision,
    now: datetime,
    decided: Mapping[str, str] | None = None,
) -> None:
    """held → sealed: a worker publishes exactly this draw, or destroys it and accounts for it.

    `decided` says who decided and why. It becomes part of the batch's history.
    """
    draw.decision = decision
    _reopen(session, batch, now)
    add_event(session, batch.id, EventKind(decision), dict(decided or {}), now)


def retry(
    session: Session,
    batch: Batch,
    policy: dict[str, Any],
    now: datetime,
    decided: Mapping[str, str] | None = None,
) -> None:
    """held or failed → sealed: run the batch again from the start, under the given policy."""
    start_again(session, batch, policy, now)
    add_event(session, batch.id, EventKind.RETRY, dict(decided or {}), now)


def request_retry(
    session: Session, batch: Batch, now: datetime, decided: Mapping[str, str] | None = None
) -> None:
    """failed, to be retried by the dispatcher as soon as the model has no other open batch."""
    batch.retry_requested = True
    add_event(session, batch.id, EventKind.RETRY, dict(decided or {}), now)


def start_again(session: Session, batch: Batch, policy: dict[str, Any], now: datetime) -> None:
    """held or failed → sealed, from the start and under the given policy."""
    batch.policy, batch.rows_examined = policy, False
    _reopen(session, batch, now)


def discarded(session: Session, batch: Batch, now: datetime) -> None:
    """running → failed, after the draw was destroyed. Its requests stay open until the batch is retried."""
    batch.state, batch.error, batch.step = BatchState.FAILED, "the draw was discarded by its owner", None
    batch.cancelled = False
    session.execute(update(Task).where(Task.batch_id == batch.id).values(state=TaskState.FAILED))
    add_event(session, batch.id, EventKind.DISCARDED, {}, now)


def _reopen(session: Session, batch: Batch, now: datetime) -> None:
    """held or failed → sealed, with a fresh set of attempts."""
    job = session.get_one(Job, batch.job_id, with_for_update=True)
    job.state, job.attempt, job.token, job.run_after = JobState.WAITING, 0, None, now
    job.error, job.failure_cause, job.finished_at, job.errors = None, None, None, 0
    forget_faults(job)
    batch.state, batch.held_reason, batch.error, batch.cancelled = BatchState.SEALED, None, None, False
    batch.retry_requested = False
    session.execute(update(Task).where(Task.batch_id == batch.id).values(state=TaskState.BATCHED))
    session.flush()


def refuse_append(
    session: Session,
    batch: Batch,
    detail: str,
    now: datetime,
    *,
    cancelled: bool = False,
    decided: Mapping[str, str] | None = None,
) -> None:
    """any → failed, for an append. It is not held, because an open batch would delay the model's erasures.

    `decided` says who cancelled it and why.
    """
    batch.state, batch.error, batch.step = BatchState.FAILED, detail[:1000], None
    batch.cancelled = cancelled
    refusals.record_refused_batch(session, batch, RefusalReason.APPEND_REFUSED)
    add_event(session, batch.id, EventKind.FAILED, {"error": batch.error, **(decided or {})}, now)


def complete_batch(session: Session, batch: Batch, now: datetime) -> None:
    """purging → completed, for the batch and its tasks."""
    batch.state, batch.completed_at, batch.step, batch.progress = BatchState.COMPLETED, now, None, None
    # The progress of the solver is a function of the data, and nobody needs it any more.
    session.execute(
        delete(BatchEvent).where(BatchEvent.batch_id == batch.id, BatchEvent.kind == EventKind.PROGRESS)
    )
    ended = {"state": TaskState.COMPLETED, "completed_at": now, "receipts_until": receipts.until(batch, now)}
    session.execute(update(Task).where(Task.batch_id == batch.id).values(ended))
    add_event(session, batch.id, EventKind.COMPLETED, {}, now)


def add_event(session: Session, batch_id: UUID, kind: EventKind, data: dict[str, Any], now: datetime) -> None:
    """Add an event to the batch's history, and a webhook notice if receivers are told of this kind."""
    session.add(BatchEvent(batch_id=batch_id, kind=EventKind(kind), data=data, at=now))
    notice = webhooks.NOTICE_OF_EVENT[EventKind(kind)]
    if notice is not None:
        webhooks.add_notice(session, notice, batch_id, now)

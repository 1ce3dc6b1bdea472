"""Batches and the tasks in them."""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, delete, func, select, update
from sqlalchemy.orm import Session

from app.clock import new_id
from app.db import receipts, refusals, webhooks
from app.db.policy import Policy
from app.db.states import OPEN_BATCH, BatchState, Decision, HeldReason, JobKind, JobState, TaskState
from app.db.tables import Batch, BatchEvent, HeldDraw, Job, Model, Task, TaskSubject
from app.db.transitions.jobs import create_job


def waiting_requests(session: Session, model_id: UUID) -> tuple[int, datetime | None, datetime | None]:
    """Return how many people the waiting requests name at most, since when they wait, and the next deadline.

    Someone in two requests is counted twice here, so that no row of a person is read: `waiting_subjects`
    counts people, and is never more.
    """
    row = session.execute(
        select(
            func.coalesce(func.sum(Task.subjects), 0), func.min(Task.created_at), func.min(Task.due_at)
        ).where(*_waits(model_id))
    ).one()
    return int(row[0]), row[1], row[2]


def waiting_subjects(session: Session, model_id: UUID) -> int:
    """Count the people whose erasure from this model waits for a batch. Reads one row for each of them."""
    return _people(session, *_waits(model_id))


def _waits(model_id: UUID) -> tuple[ColumnElement[bool], ...]:
    return Task.model_id == model_id, Task.batch_id.is_(None), Task.state == TaskState.RECEIVED


def _people(session: Session, *which: ColumnElement[bool]) -> int:
    """Count distinct people of some tasks. A row from before there was a hash counts as a person."""
    person = func.coalesce(TaskSubject.person, TaskSubject.identifier)
    query = select(func.count(person.distinct())).join(Task, Task.id == TaskSubject.task_id).where(*which)
    return session.scalar(query) or 0


def has_open_batch(session: Session, model_id: UUID) -> bool:
    open_batch = select(Batch.id).where(Batch.model_id == model_id, Batch.state.in_(OPEN_BATCH))
    return session.scalar(open_batch) is not None


def seal(session: Session, model: Model, *, because: str, now: datetime) -> Batch | None:
    """Assign every waiting task of the model to a new batch in one UPDATE; None when nothing waits."""
    if has_open_batch(session, model.id):
        return None
    job = create_job(session, JobKind.UNLEARN, model.id, now)
    batch = _new_batch(session, model, job, because=because, now=now)
    taken = session.scalars(
        update(Task)
        .where(*_waits(model.id))
        .values(batch_id=batch.id, state=TaskState.BATCHED)
        .returning(Task.id)
    ).all()
    batch.subjects = _people(session, Task.batch_id == batch.id)
    model.flush_requested = False
    if not taken:
        session.delete(batch)
        session.flush()
        session.delete(job)
        return None
    add_event(session, batch.id, "sealed", {"because": because, "subjects": batch.subjects}, now)
    _note_small(session, batch, now)
    return batch


def _note_small(session: Session, batch: Batch, now: datetime) -> None:
    """Record that a batch was sealed with fewer people than its policy wants, and with how many."""
    smallest = Policy.model_validate(batch.policy).smallest_batch
    if batch.subjects < smallest:
        few = {"subjects": batch.subjects, "min_batch_subjects": smallest}
        add_event(session, batch.id, "small_batch", few, now)


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
    """any → held, for a decision. An attempt that has looked at the rows is recorded as refused."""
    batch.state, batch.held_reason, batch.error = BatchState.HELD, reason, detail[:1000]
    refusals.record_refused_batch(session, batch, reason)
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
    refusals.record_refused_batch(session, batch, "append refused")
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
    webhooks.note(session, kind, batch_id, now)

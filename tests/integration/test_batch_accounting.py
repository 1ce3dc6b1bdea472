"""What privacy accounting needs to know about a batch survives the deletion of its events."""

import json
from typing import Any
from uuid import UUID

from sqlalchemy import delete, select, text
from sqlalchemy.orm import Session

from app.core.clock import new_id, now
from app.db import history, schema, transitions
from app.db.refusals import RefusedAttempt
from app.db.states import BatchState, BatchStep, EventKind, FailureCause, HeldReason, JobKind, SealReason
from app.db.tables import Batch, BatchEvent, Job, Model, Tenant
from app.services import Services

POLICY = {"epsilon": 1.0, "delta": 1e-5, "target_distance": 1e-4}
MANIFEST: dict[str, Any] = {
    "family": "softmax",
    "features": 2,
    "classes": 2,
    "lambda": 0.1,
    "feature_bound": 1.0,
    "origins": {"features": "raw", "constants": "public"},
    "policy": POLICY,
}


def new_batch(session: Session) -> Batch:
    """Add a tenant, a model and a sealed batch of one, and return the batch."""
    tenant_id, model_id = new_id(), new_id()
    session.add(Tenant(id=tenant_id, name=str(tenant_id)))
    session.flush()
    session.add(Model(id=model_id, tenant_id=tenant_id, name="m", manifest=MANIFEST))
    session.flush()
    job = transitions.create_job(session, JobKind.UNLEARN, model_id, now())
    batch = Batch(
        model_id=model_id, job_id=job.id, sealed_because=SealReason.FLUSH, policy=POLICY, subjects=1
    )
    session.add(batch)
    session.flush()
    return batch


def start_attempt(session: Session, batch: Batch) -> Job:
    """Queue and claim the batch's job."""
    job = session.get_one(Job, batch.job_id)
    transitions.dispatch(session, job, now())
    assert job.token is not None
    assert transitions.claim(session, job.id, job.token, now())
    session.refresh(batch)
    return job


def fail_attempt(session: Session, job: Job) -> None:
    """End the attempt as if its process had died."""
    transitions.attempt_failed(
        session,
        job,
        cause=FailureCause.PROCESS_ENDED,
        error="killed",
        now=now(),
        max_attempts=9,
        backoff=0.0,
    )


def delete_events(session: Session) -> None:
    """Delete the history that people see."""
    session.execute(delete(BatchEvent))


def test_attempts_are_counted_without_their_events(services: Services) -> None:
    with services.database.writing() as session:
        batch = new_batch(session)
        for _ in range(3):
            fail_attempt(session, start_attempt(session, batch))
            delete_events(session)
        start_attempt(session, batch)
        assert batch.attempts_started == 4


def test_a_retry_does_not_reset_the_count_of_attempts(services: Services) -> None:
    with services.database.writing() as session:
        batch = new_batch(session)
        start_attempt(session, batch)
        transitions.hold_batch(session, batch, HeldReason.NOT_CERTIFIABLE, "too far", now())
        transitions.retry(session, batch, POLICY, now())
        start_attempt(session, batch)
        assert (session.get_one(Job, batch.job_id).attempt, batch.attempts_started) == (1, 2)


def test_a_refusal_is_recorded_although_the_events_are_gone(services: Services) -> None:
    with services.database.writing() as session:
        batch = new_batch(session)
        start_attempt(session, batch)
        transitions.batch_step(session, batch, BatchStep.SOLVE, now())
        delete_events(session)
        session.flush()
        assert batch.rows_examined
        transitions.retry(session, batch, POLICY, now())
        assert not batch.rows_examined


def test_a_batch_that_has_not_touched_the_rows_records_no_refusal(services: Services) -> None:
    with services.database.writing() as session:
        batch = new_batch(session)
        start_attempt(session, batch)
        transitions.batch_step(session, batch, BatchStep.RESOLVE, now())
        transitions.hold_batch(session, batch, HeldReason.BUDGET, "used up", now())
        assert session.scalars(select(RefusedAttempt)).all() == []


def test_attempts_of_a_worker_of_the_release_before_are_counted(services: Services) -> None:
    """During an upgrade a worker of the release before leaves events and does not touch the columns."""
    with services.database.writing() as session:
        batch = new_batch(session)
        add_history(session, "tried", batch.id)
        assert (batch.attempts_started, history.attempts_started(session, batch.id)) == (0, 2)


def test_a_refusal_is_recorded_after_a_worker_of_the_release_before(services: Services) -> None:
    with services.database.writing() as session:
        batch = new_batch(session)
        add_history(session, "tried", batch.id)
        assert not batch.rows_examined
        assert history.rows_examined(session, batch.id)
        session.add(BatchEvent(batch_id=batch.id, kind=EventKind.RETRY, data={}, at=now()))
        session.flush()
        assert not history.rows_examined(session, batch.id)


def test_only_a_batch_that_ended_by_cancellation_counts_as_cancelled(services: Services) -> None:
    with services.database.writing() as session:
        batch = new_batch(session)
        transitions.cancel(session, session.get_one(Job, batch.job_id), batch, now())
        assert transitions.was_cancelled(session, batch.job_id)
        transitions.hold_batch(session, batch, HeldReason.QUALITY_GATE, "scores too low", now())
        session.flush()
        assert not transitions.was_cancelled(session, batch.job_id)


def test_the_migration_counts_what_the_events_say(services: Services) -> None:
    """A database from before the columns: the counts come from its history, once."""
    with services.database.writing() as session:
        batches = {"tried": new_batch(session).id, "cancelled": new_batch(session).id}
        for name, batch_id in batches.items():
            add_history(session, name, batch_id)
    schema.downgrade(services.database, "0020")
    with services.database.writing() as session:
        session.execute(text("UPDATE batches SET error = 'cancelled by its owner' WHERE state = 'held'"))
    schema.upgrade(services.database)
    with services.database.reading() as session:
        rows = {name: session.get_one(Batch, batch_id) for name, batch_id in batches.items()}
        tried, cancelled = rows["tried"], rows["cancelled"]
        assert (tried.attempts_started, tried.rows_examined, tried.cancelled) == (2, True, False)
        assert (cancelled.attempts_started, cancelled.rows_examined, cancelled.cancelled) == (1, False, True)


def add_history(session: Session, name: str, batch_id: UUID) -> None:
    """Add the events that an earlier version of the code left."""
    running, waiting = {"state": "running", "attempt": 1}, {"state": "sealed", "attempt": 1}
    kinds: list[tuple[str, dict[str, Any]]] = [("state", running), ("step", {"step": "solve"})]
    if name == "tried":
        kinds += [("state", waiting), ("state", running), ("step", {"step": "resolve"})]
    else:
        kinds += [("retry", {}), ("step", {"step": "resolve"})]
        session.get_one(Batch, batch_id).state = BatchState.HELD
    for kind, data in kinds:
        session.add(BatchEvent(batch_id=batch_id, kind=kind, data=json.loads(json.dumps(data)), at=now()))
        session.flush()

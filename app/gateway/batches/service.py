"""What happens to a deletion set, as its owner sees it."""

from uuid import UUID

from sqlalchemy.orm import Session

from app.access.cache import Caller
from app.access.scopes import Scope
from app.batches import repository
from app.batches.schemas import BatchShown
from app.clock import now
from app.db import refusals, transitions
from app.db.manifest import Manifest
from app.db.policy import Policy
from app.db.states import BatchState, Decision, HeldReason, JobState
from app.db.tables import Batch, Job, Model
from app.errors import Conflict, NotFound
from certificate.predicate import SMALLEST_DESCRIBED_SET

CANCELLABLE = (BatchState.SEALED, BatchState.QUEUED, BatchState.RUNNING)
ENDED = (BatchState.COMPLETED, BatchState.FAILED)


def get(session: Session, tenant_id: UUID, batch_id: UUID) -> Batch:
    batch = repository.by_id(session, tenant_id, batch_id)
    if batch is None:
        raise NotFound("There is no such batch.")
    return batch


def decide(session: Session, tenant_id: UUID, batch_id: UUID, decision: Decision) -> Batch:
    """Publish exactly the draw that is held, or destroy and count it; noise is never drawn again for it."""
    batch = _locked(session, tenant_id, batch_id)
    draw = repository.draw_of(session, batch)
    if batch.state != BatchState.HELD or draw is None:
        raise Conflict(f"The batch is {batch.state} and holds no draw to decide on.")
    transitions.decide(session, batch, draw, decision, now())
    return batch


def retry(session: Session, tenant_id: UUID, batch_id: UUID) -> Batch:
    batch = _locked(session, tenant_id, batch_id)
    if batch.state not in (BatchState.HELD, BatchState.FAILED) or batch.sealed_because == "append":
        raise Conflict(f"The batch is {batch.state}; only a held or failed erasure can be tried again.")
    if repository.draw_of(session, batch) is not None:
        raise Conflict("The batch holds a draw; approve or discard it first.")
    if batch.state == BatchState.FAILED and transitions.has_open_batch(session, batch.model_id):
        raise Conflict("Another batch of the model is under way; try again when it has ended.")
    model = session.get_one(Model, batch.model_id)
    transitions.retry(session, batch, dict(model.manifest["policy"]), now())
    return batch


def retry_changes_choices(session: Session, batch_id: UUID) -> bool:
    """Return whether a retry now would be stated on the certificate as a change after a refusal."""
    model = session.get_one(Model, session.get_one(Batch, batch_id).model_id)
    return refusals.changed_after_refusal(session, model, Manifest.model_validate(model.manifest))


def cancel(session: Session, tenant_id: UUID, batch_id: UUID) -> Batch:
    """Refused from the moment at which noise may be drawn: a draw is published, or discarded and counted."""
    job = repository.locked_job(session, tenant_id, batch_id)
    if job is None:
        raise NotFound("There is no such batch.")
    batch = session.get_one(Batch, batch_id)
    if transitions.was_cancelled(session, job.id):
        return batch
    if batch.state not in CANCELLABLE:
        raise Conflict(f"The batch is {batch.state}; only one that waits or runs can be cancelled.")
    if not batch.policy.get("cancellable", True):
        raise Conflict("The policy under which the batch was sealed lets none be cancelled.")
    if transitions.has_drawn(session, batch):
        raise Conflict("Noise has been drawn for the batch, and counts. It can be discarded only if held.")
    transitions.cancel(session, job, batch, now())
    return batch


def _locked(session: Session, tenant_id: UUID, batch_id: UUID) -> Batch:
    batch = repository.locked(session, tenant_id, batch_id)
    if batch is None:
        raise NotFound("There is no such batch.")
    return batch


def waiting_for(batch: Batch, job: Job) -> str | None:
    """Why nothing happens, in words; None when something does, or nothing will."""
    if batch.state == BatchState.HELD:
        return f"a decision: {batch.held_reason}"
    if job.state == JobState.QUEUED:
        return "a worker"
    if job.state == JobState.WAITING:
        return (
            "the dispatcher"
            if job.attempt == 0
            else f"attempt {job.attempt + 1}, not before {job.run_after:%H:%M:%S} UTC"
        )
    return None


def warnings(batch: Batch) -> list[str]:
    """Return what the model's team should know about the batch, as sentences."""
    smallest = Policy.model_validate(batch.policy).smallest_batch
    if batch.sealed_because == "append" or batch.subjects >= smallest:
        return []
    people = "1 person" if batch.subjects == 1 else f"{batch.subjects} people"
    return [
        f"Sealed with {people}, fewer than the policy's {smallest}: whoever compares the versions before and "
        "after it can nearly reconstruct the erased rows."
    ]


def shown(session: Session, batch: Batch, caller: Caller) -> BatchShown:
    """Return the batch as this caller may see it: figures about who was erased are the team's alone."""
    model, job, version = repository.surroundings(session, batch)
    team = caller.may(Scope.MODELS_ADMIN)
    return BatchShown(
        id=batch.id,
        model=model.name,
        state=BatchState(batch.state),
        sealed_because=batch.sealed_because,
        step=batch.step,
        subjects=batch.subjects,
        records=batch.records if team or batch.subjects >= SMALLEST_DESCRIBED_SET else None,
        attempt=job.attempt,
        waiting_for=waiting_for(batch, job),
        shift=batch.shift if team else None,
        progress=batch.progress,
        held_reason=HeldReason(batch.held_reason) if batch.held_reason else None,
        error=batch.error or job.error,
        warnings=warnings(batch),
        version=version.number if version else None,
        certificate_id=version.certificate_id if version else None,
        sealed_at=batch.sealed_at,
        completed_at=batch.completed_at,
    )

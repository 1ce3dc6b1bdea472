"""Batches as their owner sees them, and the owner's decisions about them."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from app.core.clock import now
from app.db import audit_log, refusals, transitions
from app.db.audit_log import Action
from app.db.manifest import Manifest
from app.db.states import (
    BatchDecision,
    BatchState,
    BatchStep,
    Decision,
    EventKind,
    HeldReason,
    JobState,
    SealReason,
)
from app.db.tables import Batch, BatchEvent, DrawRecord, Job, Model, Version
from app.gateway.auth.caller import Caller
from app.gateway.auth.scopes import Scope
from app.gateway.batches.schemas import BatchView, DecisionMade
from app.gateway.errors import Conflict, NotFound
from app.gateway.sentences import describe_batch as describe_state
from app.gateway.sentences import join_sentences
from lethe.certificate.predicate import SMALLEST_DESCRIBED_SET
from lethe.policy import Policy

CANCELLABLE = (BatchState.SEALED, BatchState.QUEUED, BatchState.RUNNING)
ENDED = (BatchState.COMPLETED, BatchState.FAILED)
_NO_BATCH = "Your tenant has no batch with this id."
_DECIDED = {Decision.APPROVE: Action.BATCH_APPROVED, Decision.DISCARD: Action.BATCH_DISCARDED}
# The events that record a decision. A batch is also put on hold, or fails, without anyone's decision.
_DECISION_OF = {
    EventKind.APPROVE: BatchDecision.APPROVE,
    EventKind.DISCARD: BatchDecision.DISCARD,
    EventKind.RETRY: BatchDecision.RETRY,
    EventKind.HELD: BatchDecision.CANCEL,
    EventKind.FAILED: BatchDecision.CANCEL,
}


def of_tenant(tenant_id: UUID) -> Select[Batch]:
    """Select the batches of a tenant."""
    return select(Batch).join(Model, Model.id == Batch.model_id).where(Model.tenant_id == tenant_id)


def get(session: Session, tenant_id: UUID, batch_id: UUID) -> Batch:
    """Return a batch of the tenant, or raise `NotFound`."""
    batch = session.scalar(of_tenant(tenant_id).where(Batch.id == batch_id))
    if batch is None:
        raise NotFound(_NO_BATCH)
    return batch


def events_after(session: Session, batch_id: UUID, last: int, limit: int) -> Sequence[BatchEvent]:
    """Return the events of a batch with ids greater than `last`, oldest first."""
    return session.scalars(
        select(BatchEvent)
        .where(BatchEvent.batch_id == batch_id, BatchEvent.id > last)
        .order_by(BatchEvent.id)
        .limit(limit)
    ).all()


def decide(
    session: Session,
    tenant_id: UUID,
    batch_id: UUID,
    decision: Decision,
    decided: Mapping[str, str] | None = None,
) -> Batch:
    """Publish the draw of a batch on hold as it is, or destroy and count it.

    Noise is never drawn again for it. `decided` says who decided and why, for the batch's history.
    """
    batch = _locked_batch(session, tenant_id, batch_id)
    draw = _locked_draw(session, batch)
    if batch.state != BatchState.HELD or draw is None:
        raise Conflict(
            f"The batch is {_in_words(batch)} and has no draw to decide on. Only a batch that is on hold "
            "with a draw can be approved or discarded."
        )
    transitions.decide(session, batch, draw, decision, now(), decided)
    _record(session, tenant_id, _DECIDED[decision], batch, decided)
    return batch


def retry(
    session: Session, tenant_id: UUID, batch_id: UUID, decided: Mapping[str, str] | None = None
) -> Batch:
    """Start a batch on hold or a failed batch again, under the model's current policy.

    If another batch of the model is in progress, the dispatcher starts it when that one has ended.
    """
    batch = _locked_batch(session, tenant_id, batch_id)
    if batch.sealed_because == SealReason.APPEND:
        raise Conflict("An append cannot be retried. Start a new append: its parts are still staged.")
    if batch.state not in (BatchState.HELD, BatchState.FAILED):
        raise Conflict(
            f"The batch is {_in_words(batch)}. Only a batch that is on hold or failed can be retried."
        )
    if _locked_draw(session, batch) is not None:
        raise Conflict("This batch has a draw that waits for a decision. Approve or discard it first.")
    if batch.retry_requested:
        return batch
    if batch.state == BatchState.FAILED and transitions.has_open_batch(session, batch.model_id):
        transitions.request_retry(session, batch, now(), decided)
    else:
        model = session.get_one(Model, batch.model_id)
        transitions.retry(session, batch, dict(model.manifest["policy"]), now(), decided)
    _record(session, tenant_id, Action.BATCH_RETRIED, batch, decided)
    return batch


def retry_changes_choices(session: Session, batch_id: UUID) -> bool:
    """Return whether the certificate of a retry would state that choices were changed after a refusal."""
    model = session.get_one(Model, session.get_one(Batch, batch_id).model_id)
    return refusals.changed_after_refusal(session, model, Manifest.model_validate(model.manifest))


def cancel(
    session: Session, tenant_id: UUID, batch_id: UUID, decided: Mapping[str, str] | None = None
) -> Batch:
    """Cancel a batch. Refused once noise may be drawn: a draw is published, or discarded and counted."""
    job = _locked_job(session, tenant_id, batch_id)
    batch = session.get_one(Batch, batch_id)
    if transitions.was_cancelled(session, job.id):
        return batch
    if batch.state not in CANCELLABLE:
        raise Conflict(
            f"The batch is {_in_words(batch)}. Only a batch that is waiting or running can be cancelled."
        )
    if not batch.policy.get("cancellable", True):
        raise Conflict("The policy that the batch was sealed under does not allow cancelling.")
    if transitions.has_drawn(session, batch):
        raise Conflict(
            "Noise has been drawn for the batch, so it can no longer be cancelled. If the batch is put on "
            "hold, you can discard the draw."
        )
    transitions.cancel(session, job, batch, now(), decided)
    _record(session, tenant_id, Action.BATCH_CANCELLED, batch, decided)
    return batch


def who_and_why(caller: Caller, reason: str | None) -> dict[str, str]:
    """Return who decides and why, for the history of a batch."""
    return {"by": caller.actor.name} | ({"why": reason} if reason else {})


def possible_decisions(batch: Batch, *, has_draw: bool) -> list[BatchDecision]:
    """Return what can be decided about a batch now. The decision itself is checked again."""
    if batch.state == BatchState.HELD and has_draw:
        return [BatchDecision.APPROVE, BatchDecision.DISCARD]
    if batch.state in (BatchState.HELD, BatchState.FAILED):
        return [] if batch.sealed_because == SealReason.APPEND else [BatchDecision.RETRY]
    is_drawing = batch.state == BatchState.RUNNING and batch.step == BatchStep.RELEASE
    if batch.state not in CANCELLABLE or has_draw or is_drawing or not batch.policy.get("cancellable", True):
        return []
    return [BatchDecision.CANCEL]


def _record(
    session: Session,
    tenant_id: UUID,
    action: Action,
    batch: Batch,
    decided: Mapping[str, str] | None = None,
) -> None:
    """Record a decision in the audit log. The text of a reason stays in the batch's history."""
    details: dict[str, Any] = {"model_id": str(batch.model_id)}
    if decided and decided.get("why"):
        details["reason"] = "in the history of the batch"
    audit_log.record(session, tenant_id, action, f"batch/{batch.id}", details)


def _locked_batch(session: Session, tenant_id: UUID, batch_id: UUID) -> Batch:
    batch = session.scalar(of_tenant(tenant_id).where(Batch.id == batch_id).with_for_update(of=Batch))
    if batch is None:
        raise NotFound(_NO_BATCH)
    return batch


def _locked_draw(session: Session, batch: Batch) -> DrawRecord | None:
    return session.get(DrawRecord, batch.id, with_for_update=True)


def _locked_job(session: Session, tenant_id: UUID, batch_id: UUID) -> Job:
    """Lock the row that every write of an attempt locks first, so that no attempt proceeds meanwhile."""
    job = session.scalar(
        select(Job)
        .join(Batch, Batch.job_id == Job.id)
        .join(Model, Model.id == Batch.model_id)
        .where(Model.tenant_id == tenant_id, Batch.id == batch_id)
        .with_for_update(of=Job)
    )
    if job is None:
        raise NotFound(_NO_BATCH)
    return job


def _in_words(batch: Batch) -> str:
    return "on hold" if batch.state == BatchState.HELD else batch.state


def waiting_for(batch: Batch, job: Job) -> str | None:
    """Return what the batch is waiting for, in words. None if it is not waiting."""
    if batch.state == BatchState.HELD:
        return f"a decision: {batch.held_reason}"
    if batch.retry_requested:
        return "its retry, which starts when the model's other batch has ended"
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
    if batch.sealed_because == SealReason.APPEND or batch.subjects >= smallest:
        return []
    people = "1 person" if batch.subjects == 1 else f"{batch.subjects} people"
    return [
        f"Sealed with {people}, fewer than the policy's minimum of {smallest}. Anyone who compares the "
        "versions before and after it can nearly reconstruct the erased rows."
    ]


def describe_batch(session: Session, batch: Batch, caller: Caller) -> BatchView:
    """Return a batch as this caller may see it."""
    return describe_batches(session, [batch], caller)[0]


def describe_batches(session: Session, batches: Sequence[Batch], caller: Caller) -> list[BatchView]:
    """Return batches as this caller may see them. Takes two queries, however many there are.

    Only the model's team sees the class drift, and the row counts of small batches.
    """
    rows = session.execute(
        select(Batch.id, Model.name, Job, Version, DrawRecord.batch_id, DrawRecord.decision)
        .join(Model, Model.id == Batch.model_id)
        .join(Job, Job.id == Batch.job_id)
        .outerjoin(Version, Version.batch_id == Batch.id)
        .outerjoin(DrawRecord, DrawRecord.batch_id == Batch.id)
        .where(Batch.id.in_([batch.id for batch in batches]))
    )
    related = {row[0]: row for row in rows}
    decided = _latest_decisions(session, [batch.id for batch in batches])
    team = caller.may(Scope.MODELS_ADMIN)
    views = []
    for batch in batches:
        _, model, job, version, draw, decision = related[batch.id]
        view = _view_of(batch, model, job, version, has_draw=draw is not None, decision=decision, team=team)
        view.decided = decided.get(batch.id)
        views.append(view)
    return views


def _latest_decisions(session: Session, batch_ids: Sequence[UUID]) -> dict[UUID, DecisionMade]:
    """Return the latest decision about each batch, from its history."""
    events = session.scalars(
        select(BatchEvent)
        .where(BatchEvent.batch_id.in_(batch_ids), BatchEvent.kind.in_(_DECISION_OF))
        .order_by(BatchEvent.id)
    )
    decided = {}
    for event in events:
        decision = _DECISION_OF[EventKind(event.kind)]
        if decision == BatchDecision.CANCEL and "by" not in event.data:
            continue  # the service put the batch on hold, or gave it up
        by, reason = event.data.get("by"), event.data.get("why")
        decided[event.batch_id] = DecisionMade(decision=decision, by=by, reason=reason, at=event.at)
    return decided


def _view_of(
    batch: Batch,
    model: str,
    job: Job,
    version: Version | None,
    *,
    has_draw: bool,
    decision: str | None,
    team: bool,
) -> BatchView:
    held_reason = HeldReason(batch.held_reason) if batch.held_reason else None
    state, adds_rows = BatchState(batch.state), batch.sealed_because == SealReason.APPEND
    return BatchView(
        id=batch.id,
        model=model,
        state=state,
        summary=join_sentences(
            *describe_state(
                state,
                held_reason,
                adds_rows=adds_rows,
                decision=None if decision is None else Decision(decision),
                delayed=job.faulty_since is not None,
            )
        ),
        decisions=possible_decisions(batch, has_draw=has_draw),
        decided=None,
        sealed_because=batch.sealed_because,
        step=batch.step,
        subjects=batch.subjects,
        records=batch.records if team or batch.subjects >= SMALLEST_DESCRIBED_SET else None,
        attempt=job.attempt,
        waiting_for=waiting_for(batch, job),
        shift=batch.shift if team else None,
        progress=batch.progress,
        held_reason=held_reason,
        error=batch.error or job.error,
        warnings=warnings(batch),
        version=version.number if version else None,
        certificate_id=version.certificate_id if version else None,
        sealed_at=batch.sealed_at,
        completed_at=batch.completed_at,
    )

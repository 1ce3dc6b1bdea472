"""Erasure requests: recorded with one task per model, identifiers encrypted, state derived."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy.orm import Session

from app.clock import new_id, now
from app.db import webhooks
from app.db.states import SubjectOutcome, TaskState
from app.db.tables import Erasure
from app.erasures import identifiers, repository
from app.erasures.deadlines import months_later
from app.erasures.recording import Idempotency, Prepared
from app.erasures.schemas import ErasureDetails, ErasureShown, TaskShown
from app.errors import Conflict, InvalidRequest, NotFound
from app.vault import Vault, row_of
from certificate.commitment import normalise_identifier

# From least to most advanced; `failed` stands outside and wins.
_ORDER = (TaskState.RECEIVED, TaskState.BATCHED, TaskState.RUNNING, TaskState.COMPLETED, TaskState.WITHDRAWN)


def derived_state(tasks: Iterable[TaskState]) -> TaskState:
    """Failed if any task is, completed when all are, else the least advanced; no task: nothing to do."""
    states = set(tasks) or {TaskState.COMPLETED}
    return TaskState.FAILED if TaskState.FAILED in states else min(states, key=_ORDER.index)


def prepare(
    vault: Vault,
    tenant_id: UUID,
    details: ErasureDetails,
    subjects: Iterable[str],
    idempotency_key: str | None,
    traceparent: str | None = None,
) -> Prepared:
    """Do everything about a request that needs no database: encryption, deadline, fingerprint, warnings."""
    created = now()
    received = _plausible(details.received_at or created, created)
    erasure_id = new_id()
    unique = list(dict.fromkeys(normalise_identifier(subject) for subject in subjects))
    return Prepared(
        erasure={
            "id": erasure_id,
            "tenant_id": tenant_id,
            "reference": details.reference,
            "reason": details.reason,
            "jurisdiction": details.jurisdiction,
            "subjects": len(unique),
            "received_at": received,
            "due_at": months_later(received, 1),
            "created_at": created,
            "traceparent": traceparent,
        },
        identifiers=[vault.encrypt(subject, row=row_of(erasure_id, i)) for i, subject in enumerate(unique)],
        people=[vault.person(tenant_id, subject) for subject in unique],
        warnings=identifiers.warnings(unique),
        models=None if details.models is None else frozenset(details.models),
        idempotency=None
        if idempotency_key is None
        else _idempotency(vault, idempotency_key, details, unique),
    )


def _idempotency(vault: Vault, key: str, details: ErasureDetails, subjects: Sequence[str]) -> Idempotency:
    """Keyed hashes: neither the caller's key nor the payload can be read, or guessed, from the database."""
    payload = "\0".join([details.model_dump_json(exclude={"subjects"}), *subjects])
    return Idempotency(
        key_hash=vault.keyed_hash(key, purpose="idempotency key"),
        fingerprint=vault.keyed_hash(payload, purpose="idempotency fingerprint"),
    )


def get(session: Session, tenant_id: UUID, erasure_id: UUID) -> Erasure:
    erasure = repository.by_id(session, tenant_id, erasure_id)
    if erasure is None:
        raise NotFound("There is no such erasure.")
    return erasure


def withdraw(session: Session, tenant_id: UUID, erasure_id: UUID, model: str | None) -> Erasure:
    erasure = get(session, tenant_id, erasure_id)
    if not repository.withdraw(session, erasure.id, model):
        raise Conflict(
            "No task of this erasure can be withdrawn: each is sealed, ended or withdrawn already."
        )
    webhooks.note(session, "withdrawn", erasure.id)
    return erasure


def extend(session: Session, tenant_id: UUID, erasure_id: UUID, reason: str) -> Erasure:
    """By two further months, once, with a reason (GDPR art. 12(3))."""
    erasure = get(session, tenant_id, erasure_id)
    due_at = months_later(erasure.received_at, 3)
    if not repository.extend(session, erasure, due_at=due_at, reason=reason, at=now()):
        raise Conflict("The deadline was extended already; it can be extended once.")
    return erasure


def shown(session: Session, erasure: Erasure) -> ErasureShown:
    """Return the erasure as its tenant sees it, with one task per model."""
    counts: dict[UUID, dict[SubjectOutcome, int]] = {}
    for task_id, outcome, count in repository.outcomes(session, erasure.id):
        counts.setdefault(task_id, {})[SubjectOutcome(str(outcome))] = count
    tasks = [
        TaskShown(
            model=model,
            state=TaskState(task.state),
            batch_id=task.batch_id,
            version=version,
            certificate_id=certificate,
            outcomes=counts.get(task.id, {}),
            near_matches=task.near_matches or 0,
            notice=identifiers.near_match_notice(task.near_matches or 0),
        )
        for task, model, version, certificate in repository.tasks(session, erasure.id)
    ]
    state = derived_state(task.state for task in tasks)
    return ErasureShown(
        id=erasure.id,
        state=state,
        subjects=erasure.subjects,
        reference=erasure.reference,
        reason=erasure.reason,
        jurisdiction=erasure.jurisdiction,
        received_at=erasure.received_at,
        due_at=erasure.due_at,
        extension_reason=erasure.extension_reason,
        overdue=state not in (TaskState.COMPLETED, TaskState.WITHDRAWN) and erasure.due_at < now(),
        tasks=tasks,
        warnings=[],
    )


def _plausible(received: datetime, created: datetime) -> datetime:
    if not created - timedelta(days=3653) <= received <= created + timedelta(minutes=5):
        raise InvalidRequest("received_at must lie in the past ten years.")
    return received

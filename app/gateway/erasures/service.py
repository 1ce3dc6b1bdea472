"""Erasure requests: preparing, withdrawing, extending and describing them.

Identifiers are encrypted before they are written. An erasure's state is derived from the states of its tasks.
"""

import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.core.clock import new_id, now
from app.core.data_key import new_task_key
from app.core.vault import RowCipher, Vault, row_of
from app.db import audit_log, transitions
from app.db.audit_log import Action
from app.db.states import BatchState, SubjectOutcome, TaskOutcome, TaskState
from app.db.tables import Batch, Erasure, Task
from app.gateway.auth.caller import Caller
from app.gateway.auth.scopes import Scope
from app.gateway.batches.service import describe_batches, possible_decisions
from app.gateway.erasures import repository
from app.gateway.erasures.deadlines import days_late, months_later
from app.gateway.erasures.recording import Idempotency, PreparedErasure
from app.gateway.erasures.repository import TaskRow
from app.gateway.erasures.schemas import ErasureDetails, ErasureProgress, ErasureView, TaskView
from app.gateway.erasures.views import NOT_REGISTERED, derived_state, summarise
from app.gateway.errors import Conflict, InvalidRequest, NotFound
from lethe.certificate.commitment import normalise_identifier

ENDED_TASK = (TaskState.COMPLETED, TaskState.FAILED, TaskState.WITHDRAWN)
IN_ERASURE = "in the erasure"  # where the audit log says that the text of a reason is
_INVISIBLE = frozenset({"Cc", "Cf"})  # control and format characters; the latter include zero-width ones


@dataclass(frozen=True)
class Progress:
    """How far an erasure is, and how it stands with its deadline."""

    state: TaskState
    completed_at: datetime | None
    overdue: bool
    late_days: int


def derive_progress(
    states: Iterable[TaskState],
    *,
    created_at: datetime,
    due_at: datetime,
    last_completed_at: datetime | None,
    at: datetime,
) -> Progress:
    """Derive an erasure's progress from the states of its tasks and the time when the last was completed.

    An erasure without a task had nothing to wait for: it was completed when it was created.
    """
    state = derived_state(states)
    is_open = state not in (TaskState.COMPLETED, TaskState.WITHDRAWN)
    completed_at = (last_completed_at or created_at) if state == TaskState.COMPLETED else None
    return Progress(
        state=state,
        completed_at=completed_at,
        overdue=is_open and due_at < at,
        late_days=days_late(due_at, at if is_open else completed_at),
    )


def prepare(
    vault: Vault,
    tenant_id: UUID,
    details: ErasureDetails,
    subjects: Iterable[str],
    idempotency_key: str | None,
    traceparent: str | None = None,
) -> PreparedErasure:
    """Do all work on a request that needs no database: encryption, deadline, fingerprint and warnings.

    The identifiers are encrypted under a key of this request, which is recorded under each model's data key.
    """
    created = now()
    received = _plausible(details.received_at or created, created)
    erasure_id = new_id()
    unique = list(dict.fromkeys(normalise_identifier(subject) for subject in subjects))
    task_key = new_task_key()
    cipher = RowCipher(task_key)
    return PreparedErasure(
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
        task_key=task_key,
        identifiers=[cipher.encrypt(subject, row=row_of(erasure_id, i)) for i, subject in enumerate(unique)],
        people=[vault.person(tenant_id, subject) for subject in unique],
        warnings=identifier_warnings(unique),
        models=None if details.models is None else frozenset(details.models),
        idempotency=None
        if idempotency_key is None
        else _idempotency(vault, idempotency_key, details, unique),
        actor=audit_log.current_actor(),
    )


def _idempotency(vault: Vault, key: str, details: ErasureDetails, subjects: Sequence[str]) -> Idempotency:
    """Return keyed hashes: neither the key nor the request can be read or guessed from the database.

    The fingerprint is hashed again, under a data key, before it is stored.
    """
    payload = "\0".join([details.model_dump_json(exclude={"subjects"}), *subjects])
    return Idempotency(
        key_hash=vault.keyed_hash(key, purpose="idempotency key"),
        fingerprint=vault.keyed_hash(payload, purpose="idempotency fingerprint"),
    )


def _plausible(received: datetime, created: datetime) -> datetime:
    if not created - timedelta(days=3653) <= received <= created + timedelta(minutes=5):
        raise InvalidRequest("received_at must lie in the past, and at most ten years ago.")
    return received


def get(session: Session, tenant_id: UUID, erasure_id: UUID) -> Erasure:
    """Return an erasure of the tenant, or raise `NotFound`."""
    erasure = repository.by_id(session, tenant_id, erasure_id)
    if erasure is None:
        raise NotFound("Your tenant has no erasure with this id.")
    return erasure


def withdraw(
    session: Session, tenant_id: UUID, erasure_id: UUID, model: str | None, reason: str | None = None
) -> Erasure:
    """Withdraw the tasks that are not sealed yet, or only the one on `model`.

    Their identifiers are deleted. The text of the reason is kept with the erasure, not in the audit log.
    """
    erasure = get(session, tenant_id, erasure_id)
    if not transitions.withdraw_tasks(session, erasure.id, model):
        raise Conflict(
            "No task of this erasure can be withdrawn: each one is already sealed in a batch, finished or "
            "withdrawn."
        )
    details = {} if model is None else {"model": model}
    if reason:
        erasure.withdrawal_reason, details["reason"] = reason, IN_ERASURE
    audit_log.record(session, tenant_id, Action.ERASURE_WITHDRAWN, f"erasure/{erasure_id}", details)
    return erasure


def extend(session: Session, tenant_id: UUID, erasure_id: UUID, reason: str) -> Erasure:
    """Extend the deadline by two months, once, with a reason (GDPR art. 12(3))."""
    erasure = get(session, tenant_id, erasure_id)
    due_at = months_later(erasure.received_at, 3)
    if not repository.extend(session, erasure, due_at=due_at, reason=reason, at=now()):
        raise Conflict("The deadline was extended before. It can be extended only once.")
    due = {"due_at": due_at.isoformat(), "reason": IN_ERASURE}
    audit_log.record(session, tenant_id, Action.ERASURE_EXTENDED, f"erasure/{erasure_id}", due)
    return erasure


def describe_erasure(session: Session, erasure: Erasure) -> ErasureView:
    """Return an erasure as its tenant sees it, with one task per model."""
    return describe_erasures(session, [erasure])[0]


def describe_progress(session: Session, erasure: Erasure, caller: Caller) -> ErasureProgress:
    """Return an erasure with the batches of its open tasks, if the caller may read them."""
    view = describe_erasure(session, erasure)
    open_batches = {task.batch_id for task in view.tasks if task.batch_id and task.state not in ENDED_TASK}
    if not open_batches or not caller.may(Scope.MODELS_READ):
        return ErasureProgress(erasure=view, batches=[])
    rows = session.scalars(select(Batch).where(Batch.id.in_(open_batches)).order_by(Batch.id)).all()
    return ErasureProgress(erasure=view, batches=describe_batches(session, rows, caller))


def describe_erasures(session: Session, erasures: Sequence[Erasure]) -> list[ErasureView]:
    """Return erasures as their tenant sees them. Takes two queries, however many there are."""
    ids = [erasure.id for erasure in erasures]
    tasks = repository.tasks_by_erasure(session, ids)
    outcomes = repository.outcomes_by_task(session, ids)
    return [
        _erasure_view(erasure, [_task_view(row, outcomes) for row in tasks.get(erasure.id, ())])
        for erasure in erasures
    ]


def _erasure_view(erasure: Erasure, tasks: list[TaskView]) -> ErasureView:
    progress = derive_progress(
        (task.state for task in tasks),
        created_at=erasure.created_at,
        due_at=erasure.due_at,
        last_completed_at=max((task.completed_at for task in tasks if task.completed_at), default=None),
        at=now(),
    )
    return ErasureView(
        id=erasure.id,
        state=progress.state,
        summary=summarise(progress.state, tasks),
        subjects=erasure.subjects,
        reference=erasure.reference,
        reason=erasure.reason,
        jurisdiction=erasure.jurisdiction,
        received_at=erasure.received_at,
        due_at=erasure.due_at,
        extension_reason=erasure.extension_reason,
        withdrawal_reason=erasure.withdrawal_reason,
        completed_at=progress.completed_at,
        overdue=progress.overdue,
        late_days=progress.late_days,
        tasks=tasks,
        warnings=[],
    )


def _task_view(row: TaskRow, outcomes: Mapping[UUID, Mapping[SubjectOutcome, int]]) -> TaskView:
    task, model, version, certificate_id, batch, draw = row
    completed = task.state == TaskState.COMPLETED
    near_matches = (task.near_matches or 0) if completed else 0
    on_hold = batch is not None and batch.state == BatchState.HELD
    return TaskView(
        model=model,
        state=TaskState(task.state),
        batch_id=task.batch_id,
        on_hold=on_hold,
        decisions=possible_decisions(batch, has_draw=draw is not None) if batch and on_hold else [],
        completed_at=task.completed_at,
        version=version,
        certificate_id=certificate_id,
        # A worker writes outcomes before the version is published. They are true once the task is completed.
        outcomes=_outcomes(task, outcomes.get(task.id, {})) if completed else {},
        near_matches=near_matches,
        notice=NOT_REGISTERED if completed and task.batch_id is None else near_match_notice(near_matches),
    )


def _outcomes(task: Task, outcomes: Mapping[SubjectOutcome, int]) -> dict[TaskOutcome, int]:
    """Return the outcomes of a completed task. Only a model that was not registered needs no batch."""
    if task.batch_id is None:
        return {TaskOutcome.MODEL_NOT_REGISTERED: task.subjects}
    return {TaskOutcome(outcome): number for outcome, number in outcomes.items()}


# Identifiers that look mistyped. They are accepted as sent, and the sender is warned.


def identifier_warnings(subjects: Iterable[str]) -> list[str]:
    """Return one sentence for each kind of likely mistake, with its count and first position.

    The sentences contain no identifier.

    >>> identifier_warnings(["ada", "bob "])[0]
    '1 identifier begins or ends with white space (number 2 of the request). It is compared as sent.'
    """
    places: list[list[int]] = [[] for _ in _MISTAKES]
    for number, subject in enumerate(subjects, 1):
        for (_, _, suspicious), numbers in zip(_MISTAKES, places, strict=True):
            if suspicious(subject):
                numbers.append(number)
    return [
        f"1 identifier {one} (number {numbers[0]} of the request). It is compared as sent."
        if len(numbers) == 1
        else f"{len(numbers)} identifiers {many} (the first is number {numbers[0]} of the request). "
        "They are compared as sent."
        for (one, many, _), numbers in zip(_MISTAKES, places, strict=True)
        if numbers
    ]


def near_match_notice(people: int) -> str | None:
    """Return what the tenant should do about near matches, or None if there are none."""
    if not people:
        return None
    who, meant = ("1 person", "that person") if people == 1 else (f"{people} people", "one of them")
    return (
        f"{who} in this model's data {'has' if people == 1 else 'have'} an identifier that differs only in "
        f"case, spacing or Unicode form. Check the spelling and send a new request if {meant} is meant."
    )


def _is_padded(subject: str) -> bool:
    return subject != subject.strip()


def _has_invisible(subject: str) -> bool:
    return not subject.isprintable() and any(unicodedata.category(c) in _INVISIBLE for c in subject)


_MISTAKES: tuple[tuple[str, str, Callable[[str], bool]], ...] = (
    ("begins or ends with white space", "begin or end with white space", _is_padded),
    ("contains control or zero-width characters", "contain control or zero-width characters", _has_invisible),
)

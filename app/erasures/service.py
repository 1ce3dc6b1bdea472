"""Erasure requests: recorded with one task per model, identifiers encrypted, state derived."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy.orm import Session

from app.bootstrap import Services
from app.clock import new_id, now
from app.db.states import ModelState, SubjectOutcome, TaskState
from app.db.tables import Erasure, Model, Task, TaskSubject
from app.erasures import repository
from app.erasures.deadlines import months_later
from app.erasures.schemas import ErasureRequest, ErasureShown, TaskShown
from app.errors import InvalidRequest, NotFound
from app.models import repository as models
from app.vault import Vault, row_of

# From least to most advanced; `failed` stands outside and wins.
_ORDER = (TaskState.RECEIVED, TaskState.BATCHED, TaskState.RUNNING, TaskState.COMPLETED, TaskState.WITHDRAWN)


def derived_state(tasks: Iterable[TaskState]) -> TaskState:
    """Failed if any task is, completed when all are, else the least advanced; no task: nothing to do."""
    states = set(tasks) or {TaskState.COMPLETED}
    return TaskState.FAILED if TaskState.FAILED in states else min(states, key=_ORDER.index)


def record(services: Services, tenant_id: UUID, body: ErasureRequest) -> ErasureShown:
    created = now()
    received = _plausible(body.received_at or created, created)
    erasure = Erasure(
        id=new_id(),
        tenant_id=tenant_id,
        reference=body.reference,
        reason=body.reason,
        jurisdiction=body.jurisdiction,
        subjects=len(set(body.subjects)),
        received_at=received,
        due_at=months_later(received, 1),
        created_at=created,
    )
    with services.database.writing() as session:
        targets = _targets(session, tenant_id, body.models)
        session.add(erasure)
        session.flush()
        for model in targets:
            _add_task(session, services.vault, erasure, model, list(dict.fromkeys(body.subjects)))
        session.flush()
        return shown(session, erasure)


def get(session: Session, tenant_id: UUID, erasure_id: UUID) -> Erasure:
    erasure = repository.by_id(session, tenant_id, erasure_id)
    if erasure is None:
        raise NotFound("There is no such erasure.")
    return erasure


def shown(session: Session, erasure: Erasure) -> ErasureShown:
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
        overdue=state not in (TaskState.COMPLETED, TaskState.WITHDRAWN) and erasure.due_at < now(),
        tasks=tasks,
    )


def _plausible(received: datetime, created: datetime) -> datetime:
    if not created - timedelta(days=3653) <= received <= created + timedelta(minutes=5):
        raise InvalidRequest("received_at must lie in the past ten years.")
    return received


def _targets(session: Session, tenant_id: UUID, names: Sequence[str] | None) -> Sequence[Model]:
    if names is None:
        live = models.of_tenant(tenant_id).where(Model.state != ModelState.RETIRED)
        return session.scalars(live).all()
    found = models.all_named(session, tenant_id, names)
    if missing := sorted(set(names) - {model.name for model in found}):
        raise InvalidRequest(f"There is no model {', '.join(missing)}.")
    return found


def _add_task(
    session: Session, vault: Vault, erasure: Erasure, model: Model, subjects: Sequence[str]
) -> None:
    task = Task(
        id=new_id(),
        erasure_id=erasure.id,
        model_id=model.id,
        subjects=len(subjects),
        due_at=erasure.due_at,
        created_at=erasure.created_at,
    )
    session.add(task)
    session.flush()
    session.add_all(
        TaskSubject(task_id=task.id, ordinal=i, identifier=vault.encrypt(subject, row=row_of(task.id, i)))
        for i, subject in enumerate(subjects)
    )

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from sqlalchemy import Row, Select, func, select, update
from sqlalchemy.orm import Session

from app.db.states import TaskState
from app.db.tables import Erasure, Model, Task, TaskSubject, Version


def of_tenant(tenant_id: UUID) -> Select[Erasure]:
    return select(Erasure).where(Erasure.tenant_id == tenant_id)


def filtered(
    tenant_id: UUID,
    *,
    state: TaskState | None,
    model: str | None,
    reference: str | None,
    overdue_at: datetime | None,
) -> Select[Erasure]:
    """Erasures with a task in `state`, on `model`; with `overdue_at`, only open ones past their deadline."""
    query = of_tenant(tenant_id)
    if reference is not None:
        query = query.where(Erasure.reference == reference)
    task = select(Task.id).where(Task.erasure_id == Erasure.id)
    if model is not None:
        task = task.join(Model, Model.id == Task.model_id).where(Model.name == model)
    if state is not None:
        task = task.where(Task.state == state)
    if overdue_at is not None:
        query = query.where(Erasure.due_at < overdue_at)
        task = task.where(Task.state.not_in((TaskState.COMPLETED, TaskState.WITHDRAWN)))
    unfiltered = state is None and model is None and overdue_at is None
    return query if unfiltered else query.where(task.exists())


def withdraw(session: Session, erasure_id: UUID, model: str | None) -> Sequence[UUID]:
    """Withdraw the tasks that are not sealed yet, in one conditional UPDATE; their ids."""
    query = update(Task).where(
        Task.erasure_id == erasure_id, Task.state == TaskState.RECEIVED, Task.batch_id.is_(None)
    )
    if model is not None:
        query = query.where(Task.model_id.in_(select(Model.id).where(Model.name == model)))
    ended = query.values(state=TaskState.WITHDRAWN).returning(Task.id)
    withdrawn = session.scalars(ended.execution_options(synchronize_session=False)).all()
    session.execute(
        update(TaskSubject).where(TaskSubject.task_id.in_(withdrawn)).values(identifier=None, person=None)
    )
    return withdrawn


def extend(session: Session, erasure: Erasure, *, due_at: datetime, reason: str, at: datetime) -> bool:
    """Once, whoever asks first; False when it was extended already."""
    extended = session.scalar(
        update(Erasure)
        .where(Erasure.id == erasure.id, Erasure.extended_at.is_(None))
        .values(due_at=due_at, extended_at=at, extension_reason=reason)
        .returning(Erasure.id)
    )
    if extended is not None:
        session.execute(update(Task).where(Task.erasure_id == erasure.id).values(due_at=due_at))
        session.refresh(erasure)
    return extended is not None


def by_id(session: Session, tenant_id: UUID, erasure_id: UUID) -> Erasure | None:
    return session.scalar(of_tenant(tenant_id).where(Erasure.id == erasure_id))


def tasks(session: Session, erasure_id: UUID) -> Sequence[Row[Task, str, int, UUID | None]]:
    """Each task with its model's name, and the version and certificate of its batch."""
    return session.execute(
        select(Task, Model.name, Version.number, Version.certificate_id)
        .join(Model, Model.id == Task.model_id)
        .outerjoin(Version, Version.batch_id == Task.batch_id)
        .where(Task.erasure_id == erasure_id)
        .order_by(Model.name)
    ).all()


def people_by_outcome(session: Session, erasure_id: UUID) -> dict[str, int]:
    """Count the people of a request who ended in each way, on at least one of its models."""
    rows = session.execute(
        select(TaskSubject.outcome, func.count(TaskSubject.ordinal.distinct()))
        .join(Task, Task.id == TaskSubject.task_id)
        .where(Task.erasure_id == erasure_id, TaskSubject.outcome.is_not(None))
        .group_by(TaskSubject.outcome)
        .order_by(TaskSubject.outcome)
    )
    return {str(outcome): count for outcome, count in rows}


def outcomes(session: Session, erasure_id: UUID) -> Sequence[Row[UUID, str | None, int]]:
    return session.execute(
        select(TaskSubject.task_id, TaskSubject.outcome, func.count())
        .join(Task, Task.id == TaskSubject.task_id)
        .where(Task.erasure_id == erasure_id, TaskSubject.outcome.is_not(None))
        .group_by(TaskSubject.task_id, TaskSubject.outcome)
    ).all()

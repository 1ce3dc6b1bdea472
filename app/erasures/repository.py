from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import Row, Select, func, select
from sqlalchemy.orm import Session

from app.db.tables import Erasure, Model, Task, TaskSubject, Version


def of_tenant(tenant_id: UUID) -> Select[Erasure]:
    return select(Erasure).where(Erasure.tenant_id == tenant_id)


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


def outcomes(session: Session, erasure_id: UUID) -> Sequence[Row[UUID, str | None, int]]:
    return session.execute(
        select(TaskSubject.task_id, TaskSubject.outcome, func.count())
        .join(Task, Task.id == TaskSubject.task_id)
        .where(Task.erasure_id == erasure_id, TaskSubject.outcome.is_not(None))
        .group_by(TaskSubject.task_id, TaskSubject.outcome)
    ).all()

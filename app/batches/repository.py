from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import Row, Select, select
from sqlalchemy.orm import Session

from app.db.tables import Batch, BatchEvent, HeldDraw, Job, Model, Version


def of_tenant(tenant_id: UUID) -> Select[Batch]:
    return select(Batch).join(Model, Model.id == Batch.model_id).where(Model.tenant_id == tenant_id)


def by_id(session: Session, tenant_id: UUID, batch_id: UUID) -> Batch | None:
    return session.scalar(of_tenant(tenant_id).where(Batch.id == batch_id))


def surroundings(session: Session, batch: Batch) -> Row[Model, Job, Version]:
    """The batch's model, its job, and the version that came of it."""
    return session.execute(
        select(Model, Job, Version)
        .select_from(Batch)
        .join(Model, Model.id == Batch.model_id)
        .join(Job, Job.id == Batch.job_id)
        .outerjoin(Version, Version.batch_id == Batch.id)
        .where(Batch.id == batch.id)
    ).one()


def draw_of(session: Session, batch: Batch) -> HeldDraw | None:
    return session.get(HeldDraw, batch.id, with_for_update=True)


def locked(session: Session, tenant_id: UUID, batch_id: UUID) -> Batch | None:
    return session.scalar(of_tenant(tenant_id).where(Batch.id == batch_id).with_for_update(of=Batch))


def locked_job(session: Session, tenant_id: UUID, batch_id: UUID) -> Job | None:
    """The row that every write of an attempt locks first: whoever holds it decides what comes next."""
    return session.scalar(
        select(Job)
        .join(Batch, Batch.job_id == Job.id)
        .join(Model, Model.id == Batch.model_id)
        .where(Model.tenant_id == tenant_id, Batch.id == batch_id)
        .with_for_update(of=Job)
    )


def events_after(session: Session, batch_id: UUID, last: int, most: int) -> Sequence[BatchEvent]:
    return session.scalars(
        select(BatchEvent)
        .where(BatchEvent.batch_id == batch_id, BatchEvent.id > last)
        .order_by(BatchEvent.id)
        .limit(most)
    ).all()

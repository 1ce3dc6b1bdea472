"""What only pages ask of the database: counts and orders that the API does not offer."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from app.batches import repository as batches
from app.clock import now
from app.db.states import OPEN_BATCH, TaskState
from app.db.tables import Batch, BatchEvent, Certificate, Erasure, HeldDraw, Model, Task
from app.erasures import repository as erasures

_ENDED = (TaskState.COMPLETED, TaskState.WITHDRAWN)


def size_of(session: Session, query: Select[Any]) -> int:
    return session.scalar(select(func.count()).select_from(query.order_by(None).subquery())) or 0


def open_erasures(tenant_id: UUID) -> Select[Erasure]:
    waiting = select(Task.id).where(Task.erasure_id == Erasure.id, Task.state.not_in(_ENDED))
    return erasures.of_tenant(tenant_id).where(waiting.exists())


def nearest_deadlines(session: Session, tenant_id: UUID, most: int) -> Sequence[Erasure]:
    query = open_erasures(tenant_id).order_by(Erasure.due_at, Erasure.id).limit(most)
    return session.scalars(query).all()


def overdue(tenant_id: UUID) -> Select[Erasure]:
    return open_erasures(tenant_id).where(Erasure.due_at < now())


def open_batches(tenant_id: UUID) -> Select[Batch]:
    return batches.of_tenant(tenant_id).where(Batch.state.in_(OPEN_BATCH)).order_by(Batch.id.desc())


def batches_of_model(session: Session, model_id: UUID, most: int) -> Sequence[Batch]:
    query = select(Batch).where(Batch.model_id == model_id).order_by(Batch.id.desc()).limit(most)
    return session.scalars(query).all()


def holds_draw(session: Session, batch_id: UUID) -> bool:
    """Without the lock that a decision takes."""
    return session.scalar(select(HeldDraw.batch_id).where(HeldDraw.batch_id == batch_id)) is not None


def progress(session: Session, batch_id: UUID, most: int) -> Sequence[BatchEvent]:
    """The newest steps of the solver, oldest first."""
    newest = session.scalars(
        select(BatchEvent)
        .where(BatchEvent.batch_id == batch_id, BatchEvent.kind == "progress")
        .order_by(BatchEvent.id.desc())
        .limit(most)
    ).all()
    return newest[::-1]


def happenings(session: Session, batch_id: UUID, most: int) -> Sequence[BatchEvent]:
    """Everything else that happened to a batch, newest first."""
    return session.scalars(
        select(BatchEvent)
        .where(BatchEvent.batch_id == batch_id, BatchEvent.kind != "progress")
        .order_by(BatchEvent.id.desc())
        .limit(most)
    ).all()


def newest_event(session: Session, batch_id: UUID) -> int:
    return session.scalar(select(func.max(BatchEvent.id)).where(BatchEvent.batch_id == batch_id)) or 0


def certificates_of_model(session: Session, model_id: UUID, most: int) -> Sequence[Certificate]:
    """Newest first."""
    query = select(Certificate).where(Certificate.model_id == model_id)
    return session.scalars(query.order_by(Certificate.chain_index.desc()).limit(most)).all()


def model_names(session: Session, tenant_id: UUID) -> Sequence[str]:
    return session.scalars(select(Model.name).where(Model.tenant_id == tenant_id).order_by(Model.name)).all()

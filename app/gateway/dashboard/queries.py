"""Database queries that only the pages need: counts and orders that the API does not offer."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from app.core.clock import now
from app.db.states import OPEN_BATCH, EventKind, ModelState
from app.db.tables import Batch, BatchEvent, Certificate, Erasure, Model, Task, task_is_open
from app.gateway.batches import service as batches
from app.gateway.erasures import repository as erasures

MOST_COUNTED = 1000
MAX_MODELS = 1000


class CappedCount(int):
    """A number of rows. Counting ends at `MOST_COUNTED`, and is then shown with a plus sign.

    >>> f"{CappedCount(999):,}", f"{CappedCount(MOST_COUNTED):,}"
    ('999', '1,000+')
    """

    def __format__(self, spec: str) -> str:
        return super().__format__(spec) + ("+" if self >= MOST_COUNTED else "")


def count_rows(session: Session, query: Select[Any]) -> CappedCount:
    """Count the rows that a query would return, up to `MOST_COUNTED`.

    Counting every row of a large table would take longer than the rest of its page.
    """
    rows = query.order_by(None).limit(MOST_COUNTED).subquery()
    return CappedCount(session.scalar(select(func.count()).select_from(rows)) or 0)


def open_erasures(tenant_id: UUID) -> Select[Erasure]:
    """Select the requests of a tenant that are not fulfilled for at least one model."""
    unfulfilled = select(Task.id).where(Task.erasure_id == Erasure.id, task_is_open())
    return erasures.of_tenant(tenant_id).where(unfulfilled.exists())


def overdue_erasures(tenant_id: UUID) -> Select[Erasure]:
    """Select the open requests of a tenant whose deadline has passed."""
    return erasures.filtered(tenant_id, state=None, model=None, reference=None, overdue_at=now())


def nearest_deadlines(session: Session, tenant_id: UUID, limit: int) -> Sequence[Erasure]:
    """Return the open requests of a tenant whose deadlines come first."""
    own = select(Erasure.id).where(Erasure.id == Task.erasure_id, Erasure.tenant_id == tenant_id)
    nearest = (
        select(Task.due_at, Task.erasure_id)
        .distinct()  # an erasure has a task for each of its models
        .where(task_is_open(), own.exists())  # with a join, SQLite would sort all erasures of the tenant
        .order_by(Task.due_at, Task.erasure_id)
        .limit(limit)
    )
    ids = [erasure_id for _, erasure_id in session.execute(nearest)]
    found = {e.id: e for e in session.scalars(select(Erasure).where(Erasure.id.in_(ids)))}
    return [found[erasure_id] for erasure_id in ids]


def open_batches(tenant_id: UUID) -> Select[Batch]:
    """Select the batches of a tenant that are in progress or on hold, newest first."""
    return batches.of_tenant(tenant_id).where(Batch.state.in_(OPEN_BATCH)).order_by(Batch.id.desc())


def batches_of_model(session: Session, model_id: UUID, limit: int) -> Sequence[Batch]:
    """Return the newest batches of a model, newest first."""
    query = select(Batch).where(Batch.model_id == model_id).order_by(Batch.id.desc()).limit(limit)
    return session.scalars(query).all()


def progress_reports(session: Session, batch_id: UUID, limit: int) -> Sequence[BatchEvent]:
    """Return the latest progress of the solver, or of the features before it, oldest first."""
    newest = session.scalars(
        select(BatchEvent)
        .where(BatchEvent.batch_id == batch_id, BatchEvent.kind == EventKind.PROGRESS)
        .order_by(BatchEvent.id.desc())
        .limit(limit)
    ).all()
    return newest[::-1]


def batch_history(session: Session, batch_id: UUID, limit: int) -> Sequence[BatchEvent]:
    """Return the latest events of a batch other than progress, newest first."""
    return session.scalars(
        select(BatchEvent)
        .where(BatchEvent.batch_id == batch_id, BatchEvent.kind != EventKind.PROGRESS)
        .order_by(BatchEvent.id.desc())
        .limit(limit)
    ).all()


def newest_event_id(session: Session, batch_id: UUID) -> int:
    """Return the id of the latest event of a batch, or 0."""
    return session.scalar(select(func.max(BatchEvent.id)).where(BatchEvent.batch_id == batch_id)) or 0


def certificates_of_model(session: Session, model_id: UUID, limit: int) -> Sequence[Certificate]:
    """Return the newest certificates of a model, newest first."""
    query = select(Certificate).where(Certificate.model_id == model_id)
    return session.scalars(query.order_by(Certificate.chain_index.desc()).limit(limit)).all()


def model_names(session: Session, tenant_id: UUID) -> Sequence[str]:
    """Return the names of a tenant's models in alphabetical order."""
    query = select(Model.name).where(Model.tenant_id == tenant_id).order_by(Model.name)
    return session.scalars(query.limit(MAX_MODELS)).all()


def erasable_models(session: Session, tenant_id: UUID) -> Sequence[str]:
    """Return the names of a tenant's models that are not retired, in alphabetical order."""
    query = select(Model.name).where(Model.tenant_id == tenant_id, Model.state != ModelState.RETIRED)
    return session.scalars(query.order_by(Model.name).limit(MAX_MODELS)).all()

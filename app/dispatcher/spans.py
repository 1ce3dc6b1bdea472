"""Spans of the dispatcher's work, in the traces of the requests it works on."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.core.tracing import MOST_LINKS, Tracer
from app.db import transitions
from app.db.states import SealReason, TaskState
from app.db.tables import Batch, Erasure, Job, Model, Task
from app.services import Services


def seal(
    tracer: Tracer, session: Session, model: Model, *, because: SealReason, now: datetime
) -> Batch | None:
    """Seal a batch within a span that continues the oldest request's trace and links the others'."""
    waiting = _traces(session, model.id) if tracer.enabled else []
    with tracer.span("seal", parent=next(iter(waiting), None), links=waiting[1:], model=model.id) as trace:
        batch = transitions.seal(session, model, because=because, now=now)
    if batch is not None and trace is not None:
        session.get_one(Job, batch.job_id).traceparent = trace
    return batch


def dispatch(services: Services, job_id: UUID) -> AbstractContextManager[str | None]:
    """Return a span, in the job's trace, for sending its message."""
    tracer = services.tracer
    if not tracer.enabled:
        return tracer.span("dispatch")
    with services.database.reading() as session:
        parent = session.scalar(select(Job.traceparent).where(Job.id == job_id))
    return tracer.span("dispatch", parent=parent, job=job_id)


def _traces(session: Session, model_id: UUID) -> Sequence[str]:
    """Return the traces of the requests that wait for a batch, oldest first."""
    traces = session.scalars(
        select(Erasure.traceparent)
        .join(Task, Task.erasure_id == Erasure.id)
        .where(
            Task.model_id == model_id,
            Task.batch_id.is_(None),
            Task.state == TaskState.RECEIVED,
            Erasure.traceparent.is_not(None),
        )
        .order_by(Erasure.id)
        .limit(MOST_LINKS)
    )
    return [trace for trace in traces if trace is not None]

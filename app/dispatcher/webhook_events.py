"""Turning notices of state changes into webhook events and deliveries. Events carry ids only."""

from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import Select, delete, exists, func, insert, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, aliased

from app.core import logging
from app.core.clock import new_id
from app.db import webhook_store
from app.db.states import TaskState
from app.db.tables import Batch, Erasure, Model, Task, Version
from app.db.webhooks import (
    EventType,
    NoticeKind,
    WebhookDelivery,
    WebhookEndpoint,
    WebhookEvent,
    WebhookNotice,
)
from app.services import Services

log = logging.get_logger("webhooks")
_OPEN_OR_FAILED = (TaskState.RECEIVED, TaskState.BATCHED, TaskState.RUNNING, TaskState.FAILED)
_EVENT_OF_BATCH = {
    NoticeKind.COMPLETED: EventType.BATCH_COMPLETED,
    NoticeKind.FAILED: EventType.BATCH_FAILED,
    NoticeKind.DISCARDED: EventType.BATCH_FAILED,
    NoticeKind.HELD: EventType.BATCH_HELD,
    NoticeKind.ALERT: EventType.BATCH_ALERT,
}
_EVENT_OF_MODEL = {
    NoticeKind.MODEL_READY: EventType.MODEL_READY,
    NoticeKind.MODEL_REJECTED: EventType.MODEL_REJECTED,
    NoticeKind.MODEL_RETIRED: EventType.MODEL_RETIRED,
}


def expand_notices(services: Services, limit: int = 100) -> int:
    """Turn up to `limit` notices into events and deliveries, one transaction each. Return how many.

    This happens after the state change is committed, not in its transaction: if two batches end the same
    erasure at the same moment, it looks unfinished from within either transaction.
    """
    with services.database.reading() as session:
        waiting = session.scalars(select(WebhookNotice.id).order_by(WebhookNotice.id).limit(limit)).all()
    for notice_id in waiting:
        try:
            with services.database.writing() as session:
                _expand(session, notice_id)
        except IntegrityError:  # an endpoint was deleted, or another courier added the event: retry later
            log.info("a notice is retried later", notice=str(notice_id))
    return len(waiting)


def _expand(session: Session, notice_id: UUID) -> None:
    query = select(WebhookNotice).where(WebhookNotice.id == notice_id)
    notice = session.scalar(query.with_for_update(skip_locked=True))
    if notice is None:  # another courier has expanded it or is doing so
        return
    if (tenant_id := _tenant_of(session, notice)) is not None:
        endpoints = session.scalars(
            select(WebhookEndpoint).where(
                WebhookEndpoint.tenant_id == tenant_id, WebhookEndpoint.enabled.is_(True)
            )
        ).all()
        _add_events(session, tenant_id, notice, endpoints)
    session.execute(delete(WebhookNotice).where(WebhookNotice.id == notice_id))


def _tenant_of(session: Session, notice: WebhookNotice) -> UUID | None:
    tenant: Select[UUID]
    if notice.kind == NoticeKind.WITHDRAWN:
        tenant = select(Erasure.tenant_id).where(Erasure.id == notice.subject_id)
    elif notice.kind in _EVENT_OF_MODEL:
        tenant = select(Model.tenant_id).where(Model.id == notice.subject_id)
    else:
        of_batch = select(Model.tenant_id).join(Batch, Batch.model_id == Model.id)
        tenant = of_batch.where(Batch.id == notice.subject_id)
    return session.scalar(tenant)


def _add_events(
    session: Session, tenant_id: UUID, notice: WebhookNotice, endpoints: Sequence[WebhookEndpoint]
) -> None:
    events, deliveries = [], []
    for event_type, data in _events_of(session, notice) if endpoints else ():
        subscribed = [endpoint.id for endpoint in endpoints if endpoint.subscribes_to(event_type)]
        if not subscribed:
            continue
        event_id = new_id()
        completes = UUID(data["erasure_id"]) if event_type == EventType.ERASURE_COMPLETED else None
        events.append(
            {
                "id": event_id,
                "tenant_id": tenant_id,
                "type": event_type,
                "data": data,
                "completes": completes,
                "at": notice.at,
            }
        )
        deliveries += [webhook_store.delivery_values(endpoint_id, event_id) for endpoint_id in subscribed]
    if events:
        session.execute(insert(WebhookEvent), events)
        session.execute(insert(WebhookDelivery), deliveries)


def _events_of(session: Session, notice: WebhookNotice) -> Iterator[tuple[EventType, dict[str, Any]]]:
    """Yield the type and data of every event that follows from a notice."""
    kind, subject = NoticeKind(notice.kind), notice.subject_id
    if kind == NoticeKind.WITHDRAWN:
        yield from _completed(session, Task.erasure_id == subject)
    elif kind in _EVENT_OF_MODEL:
        model = session.get_one(Model, subject)
        yield _EVENT_OF_MODEL[kind], {"model_id": str(model.id), "model": model.name}
        if kind == NoticeKind.MODEL_RETIRED:  # requests that waited for this model are complete
            yield from _completed(session, (Task.model_id == subject) & Task.batch_id.is_(None))
    else:
        yield from _events_of_batch(session, kind, session.get_one(Batch, subject))


def _events_of_batch(
    session: Session, kind: NoticeKind, batch: Batch
) -> Iterator[tuple[EventType, dict[str, Any]]]:
    model = session.get_one(Model, batch.model_id)
    ids: dict[str, Any] = {"batch_id": str(batch.id), "model_id": str(model.id), "model": model.name}
    if kind == NoticeKind.PUBLISHED:
        yield from _published(session, batch, ids)
        return
    yield _EVENT_OF_BATCH[kind], ids
    if kind == NoticeKind.COMPLETED:
        yield from _completed(session, Task.batch_id == batch.id)
    if kind in (NoticeKind.FAILED, NoticeKind.DISCARDED):
        for erasure_id in session.scalars(select(Task.erasure_id).where(Task.batch_id == batch.id)):
            yield EventType.ERASURE_FAILED, {"erasure_id": str(erasure_id)} | ids


def _published(
    session: Session, batch: Batch, ids: dict[str, Any]
) -> Iterator[tuple[EventType, dict[str, Any]]]:
    version = session.scalar(select(Version).where(Version.batch_id == batch.id))
    if version is None:  # nobody in the batch had rows, so nothing was released
        return
    yield (
        EventType.CERTIFICATE_PUBLISHED,
        ids | {"certificate_id": str(version.certificate_id), "version": version.number},
    )
    before = select(func.max(Version.number)).where(
        Version.model_id == version.model_id, Version.number < version.number
    )
    yield (
        EventType.VERSION_SUPERSEDED,
        ids | {"version": session.scalar(before), "superseded_by": version.number},
    )


def _completed(session: Session, among: Any) -> Iterator[tuple[EventType, dict[str, Any]]]:
    """Yield an event for every completed erasure that has a task among these.

    An erasure is complete if no task is open or failed and at least one is completed. It is reported once.
    """
    other = aliased(Task)
    unfinished = exists().where(other.erasure_id == Task.erasure_id, other.state.in_(_OPEN_OR_FAILED))
    reported = exists().where(WebhookEvent.completes == Task.erasure_id)
    ended = exists().where(other.erasure_id == Task.erasure_id, other.state == TaskState.COMPLETED)
    query = select(Task.erasure_id).where(among, ended, ~unfinished, ~reported).distinct()
    for erasure_id in session.scalars(query):
        yield EventType.ERASURE_COMPLETED, {"erasure_id": str(erasure_id)}

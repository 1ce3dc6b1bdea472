"""From notices to events: what a change of state means to those who listen, told by ids alone."""

from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import Select, delete, exists, func, insert, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, aliased

from app import logs
from app.bootstrap import Services
from app.clock import new_id, now
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

log = logs.get("webhooks")
_OPEN_OR_FAILED = (TaskState.RECEIVED, TaskState.BATCHED, TaskState.RUNNING, TaskState.FAILED)
_OF_BATCH = {
    NoticeKind.COMPLETED: EventType.BATCH_COMPLETED,
    NoticeKind.FAILED: EventType.BATCH_FAILED,
    NoticeKind.DISCARDED: EventType.BATCH_FAILED,
    NoticeKind.HELD: EventType.BATCH_HELD,
    NoticeKind.ALERT: EventType.BATCH_ALERT,
}
_OF_MODEL = {
    NoticeKind.MODEL_READY: EventType.MODEL_READY,
    NoticeKind.MODEL_REJECTED: EventType.MODEL_REJECTED,
    NoticeKind.MODEL_RETIRED: EventType.MODEL_RETIRED,
}


def unfold(services: Services, most: int = 100) -> int:
    """Turn what was noted into events and deliveries, one transaction each; how many notices that were.

    It is done after the change is committed and not in its transaction: an erasure that two batches end at
    the same moment looks unfinished from within either of them.
    """
    with services.database.reading() as session:
        waiting = session.scalars(select(WebhookNotice.id).order_by(WebhookNotice.id).limit(most)).all()
    for notice_id in waiting:
        try:
            with services.database.writing() as session:
                _unfold(session, notice_id)
        except IntegrityError:  # an endpoint was deleted, or another dispatcher told the same: look again
            log.info("a notice is put off", notice=str(notice_id))
    return len(waiting)


def _unfold(session: Session, notice_id: UUID) -> None:
    query = select(WebhookNotice).where(WebhookNotice.id == notice_id)
    notice = session.scalar(query.with_for_update(skip_locked=True))
    if notice is None:  # another dispatcher is at it, or was
        return
    if (tenant_id := _tenant_of(session, notice)) is not None:
        listening = session.scalars(
            select(WebhookEndpoint).where(
                WebhookEndpoint.tenant_id == tenant_id, WebhookEndpoint.enabled.is_(True)
            )
        ).all()
        _tell(session, tenant_id, notice, listening)
    session.execute(delete(WebhookNotice).where(WebhookNotice.id == notice_id))


def _tenant_of(session: Session, notice: WebhookNotice) -> UUID | None:
    tenant: Select[UUID]
    if notice.kind == NoticeKind.WITHDRAWN:
        tenant = select(Erasure.tenant_id).where(Erasure.id == notice.subject_id)
    elif notice.kind in _OF_MODEL:
        tenant = select(Model.tenant_id).where(Model.id == notice.subject_id)
    else:
        of_batch = select(Model.tenant_id).join(Batch, Batch.model_id == Model.id)
        tenant = of_batch.where(Batch.id == notice.subject_id)
    return session.scalar(tenant)


def _tell(
    session: Session, tenant_id: UUID, notice: WebhookNotice, listening: Sequence[WebhookEndpoint]
) -> None:
    events, deliveries = [], []
    for kind, data in _meaning(session, notice) if listening else ():
        hearers = [endpoint.id for endpoint in listening if endpoint.hears(kind)]
        if not hearers:
            continue
        event_id = new_id()
        completes = UUID(data["erasure_id"]) if kind == EventType.ERASURE_COMPLETED else None
        events.append(
            {
                "id": event_id,
                "tenant_id": tenant_id,
                "type": kind,
                "data": data,
                "completes": completes,
                "at": notice.at,
            }
        )
        deliveries += [delivery_values(endpoint_id, event_id) for endpoint_id in hearers]
    if events:
        session.execute(insert(WebhookEvent), events)
        session.execute(insert(WebhookDelivery), deliveries)


def delivery_values(endpoint_id: UUID, event_id: UUID) -> dict[str, Any]:
    return {"id": new_id(), "endpoint_id": endpoint_id, "event_id": event_id, "next_attempt_at": now()}


def _meaning(session: Session, notice: WebhookNotice) -> Iterator[tuple[EventType, dict[str, Any]]]:
    kind, subject = NoticeKind(notice.kind), notice.subject_id
    if kind == NoticeKind.WITHDRAWN:
        yield from _completed(session, Task.erasure_id == subject)
    elif kind in _OF_MODEL:
        model = session.get_one(Model, subject)
        yield _OF_MODEL[kind], {"model_id": str(model.id), "model": model.name}
        if kind == NoticeKind.MODEL_RETIRED:  # whoever waited for it has nothing left to wait for
            yield from _completed(session, (Task.model_id == subject) & Task.batch_id.is_(None))
    else:
        yield from _of_batch(session, kind, session.get_one(Batch, subject))


def _of_batch(session: Session, kind: NoticeKind, batch: Batch) -> Iterator[tuple[EventType, dict[str, Any]]]:
    model = session.get_one(Model, batch.model_id)
    ids: dict[str, Any] = {"batch_id": str(batch.id), "model_id": str(model.id), "model": model.name}
    if kind == NoticeKind.PUBLISHED:
        yield from _published(session, batch, ids)
        return
    yield _OF_BATCH[kind], ids
    if kind == NoticeKind.COMPLETED:
        yield from _completed(session, Task.batch_id == batch.id)
    if kind in (NoticeKind.FAILED, NoticeKind.DISCARDED):
        for erasure_id in session.scalars(select(Task.erasure_id).where(Task.batch_id == batch.id)):
            yield EventType.ERASURE_FAILED, {"erasure_id": str(erasure_id)} | ids


def _published(
    session: Session, batch: Batch, ids: dict[str, Any]
) -> Iterator[tuple[EventType, dict[str, Any]]]:
    version = session.scalar(select(Version).where(Version.batch_id == batch.id))
    if version is None:  # no subject had a row: nothing was released
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
    """Erasures whose every task has ended well, at least one of them among these; each is told of once."""
    other = aliased(Task)
    unfinished = exists().where(other.erasure_id == Task.erasure_id, other.state.in_(_OPEN_OR_FAILED))
    told = exists().where(WebhookEvent.completes == Task.erasure_id)
    ended = exists().where(other.erasure_id == Task.erasure_id, other.state == TaskState.COMPLETED)
    query = select(Task.erasure_id).where(among, ended, ~unfinished, ~told).distinct()
    for erasure_id in session.scalars(query):
        yield EventType.ERASURE_COMPLETED, {"erasure_id": str(erasure_id)}

"""The tables of webhooks: endpoints, events, deliveries, and the notices that events are made from.

Rows hold ids only. Nothing here names a person.

Every state change that receivers care about adds a notice in its own transaction, so a notice exists exactly
when the change was committed. The dispatcher later turns notices into events and deliveries.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy import ForeignKey, Index, LargeBinary, String
from sqlalchemy.orm import Mapped, Session, mapped_column

from app.core.clock import new_id, now
from app.db.states import EventKind
from app.db.types import Base, one_of


class EventType(StrEnum):
    """The events that a receiver can subscribe to."""

    ERASURE_COMPLETED = "erasure.completed"
    ERASURE_FAILED = "erasure.failed"
    BATCH_COMPLETED = "batch.completed"
    BATCH_FAILED = "batch.failed"
    BATCH_HELD = "batch.held"
    BATCH_ALERT = "batch.alert"
    CERTIFICATE_PUBLISHED = "certificate.published"
    VERSION_SUPERSEDED = "version.superseded"
    MODEL_READY = "model.ready"
    MODEL_REJECTED = "model.rejected"
    MODEL_RETIRED = "model.retired"


PING = "webhook.ping"  # sent only on request, so nobody can subscribe to it


class DeliveryState(StrEnum):
    """The states of a delivery. A dead one is not tried again until it is replayed."""

    PENDING = "pending"
    DELIVERED = "delivered"
    DEAD = "dead"


class DisabledReason(StrEnum):
    """Why the service disabled an endpoint by itself."""

    GONE = "gone"  # the receiver answered 410


class MessageFormat(StrEnum):
    """How the body of a message is written."""

    STANDARD = "standard"
    CLOUDEVENTS = "cloudevents"


class NoticeKind(StrEnum):
    """What a notice says happened: to a batch, to a model, or to an erasure outside any batch."""

    COMPLETED = "completed"
    FAILED = "failed"
    DISCARDED = "discarded"
    HELD = "held"
    ALERT = "alert"
    PUBLISHED = "published"
    MODEL_READY = "model.ready"
    MODEL_REJECTED = "model.rejected"
    MODEL_RETIRED = "model.retired"
    WITHDRAWN = "withdrawn"


class WebhookNotice(Base):
    """A state change that has not been turned into events yet.

    `subject_id` is the id of a batch, a model or an erasure, depending on `kind`.
    """

    __tablename__ = "webhook_notices"
    __table_args__ = (one_of("kind", NoticeKind),)
    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_id)
    kind: Mapped[str] = mapped_column(String(16))
    subject_id: Mapped[UUID]
    at: Mapped[datetime] = mapped_column(default=now)


class WebhookEndpoint(Base):
    """A URL that a tenant wants events posted to. Its secrets are stored encrypted."""

    __tablename__ = "webhook_endpoints"
    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_id)
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"), index=True)
    url: Mapped[str] = mapped_column(String(2000))
    description: Mapped[str] = mapped_column(String(200), default="")
    event_types: Mapped[list[Any]]
    """The event types to send. An empty list means all of them."""
    enabled: Mapped[bool] = mapped_column(default=True)
    disabled_reason: Mapped[str | None] = mapped_column(String(16))
    """Why the service disabled the endpoint (`DisabledReason`). Null if its owner did."""
    secret: Mapped[bytes] = mapped_column(LargeBinary())
    previous_secret: Mapped[bytes | None] = mapped_column(LargeBinary())
    previous_until: Mapped[datetime | None]
    envelope: Mapped[str] = mapped_column(
        String(16), default=MessageFormat.STANDARD, server_default=MessageFormat.STANDARD.value
    )
    """How the bodies of its messages are written (`MessageFormat`)."""
    created_at: Mapped[datetime] = mapped_column(default=now)

    def subscribes_to(self, event_type: str) -> bool:
        """Return whether events of this type are sent to this endpoint."""
        return not self.event_types or event_type in self.event_types


class WebhookEvent(Base):
    """One message, the same for every endpoint. Receivers see its id as the message id."""

    __tablename__ = "webhook_events"
    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_id)
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"))
    type: Mapped[str] = mapped_column(String(32))
    data: Mapped[dict[str, Any]]
    completes: Mapped[UUID | None] = mapped_column(unique=True)
    """The erasure that this event reports as completed.

    It is unique, so an erasure is reported once, whichever of its batches ended last.
    """
    at: Mapped[datetime] = mapped_column(index=True)

    @property
    def payload(self) -> dict[str, Any]:
        """The message: type, time and ids. A receiver fetches anything else through the API."""
        at = self.at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return {"type": self.type, "timestamp": at, "data": self.data}


class WebhookDelivery(Base):
    """The delivery of one event to one endpoint.

    `attempts` is a fencing token: only the sender that began the newest attempt may record how it ended.
    `next_attempt_at` doubles as a lease: a sender moves it into the future before it sends, so if the sender
    dies, another one takes over after the lease.
    """

    __tablename__ = "webhook_deliveries"
    __table_args__ = (
        one_of("state", DeliveryState),
        Index("ix_webhook_deliveries_state_next_attempt_at", "state", "next_attempt_at"),
    )
    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_id)
    endpoint_id: Mapped[UUID] = mapped_column(
        ForeignKey("webhook_endpoints.id", ondelete="CASCADE"), index=True
    )
    event_id: Mapped[UUID] = mapped_column(ForeignKey("webhook_events.id", ondelete="CASCADE"), index=True)
    state: Mapped[str] = mapped_column(String(16), default=DeliveryState.PENDING)
    attempts: Mapped[int] = mapped_column(default=0)
    tries: Mapped[int] = mapped_column(default=0)
    """Attempts since the delivery was created or replayed. It selects the wait before the next one."""
    status_code: Mapped[int | None]
    error: Mapped[str | None] = mapped_column(String(32))
    next_attempt_at: Mapped[datetime]
    created_at: Mapped[datetime] = mapped_column(default=now)
    ended_at: Mapped[datetime | None]


# The notice that each kind of batch event adds; None if receivers are not told. Every kind is listed.
NOTICE_OF_EVENT: Mapping[EventKind, NoticeKind | None] = {
    EventKind.SEALED: None,
    EventKind.SMALL_BATCH: None,
    EventKind.STATE: None,
    EventKind.STEP: None,
    EventKind.PROGRESS: None,
    EventKind.ALERT: NoticeKind.ALERT,
    EventKind.DELAYED: NoticeKind.ALERT,
    EventKind.PUBLISHED: NoticeKind.PUBLISHED,
    EventKind.HELD: NoticeKind.HELD,
    EventKind.APPROVE: None,
    EventKind.DISCARD: None,
    EventKind.DISCARDED: NoticeKind.DISCARDED,
    EventKind.RETRY: None,
    EventKind.FAILED: NoticeKind.FAILED,
    EventKind.COMPLETED: NoticeKind.COMPLETED,
}


def add_notice(session: Session, kind: NoticeKind, subject_id: UUID, at: datetime | None = None) -> None:
    """Add a notice of a state change, in the transaction that makes the change."""
    session.add(WebhookNotice(kind=NoticeKind(kind), subject_id=subject_id, at=at or now()))

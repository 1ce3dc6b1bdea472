"""Webhooks: who listens, what happened, and what was sent of it. Ids only: nothing here names a person.

A change of state leaves a notice in its own transaction: what did not happen is not told, and what happened
is not forgotten. Whoever delivers unfolds notices into events later, when everything beside it is committed.
"""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy import ForeignKey, Index, LargeBinary, String
from sqlalchemy.orm import Mapped, Session, mapped_column

from app.clock import new_id, now
from app.db.types import Base, one_of


class EventType(StrEnum):
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


PING = "webhook.ping"  # asked for, never subscribed to


class DeliveryState(StrEnum):
    PENDING = "pending"
    DELIVERED = "delivered"
    DEAD = "dead"


class NoticeKind(StrEnum):
    """The kinds of batch event that matter outside; and what happens to models, and without a batch."""

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
    """The outbox: `subject_id` is a batch, a model or an erasure, as the kind says."""

    __tablename__ = "webhook_notices"
    __table_args__ = (one_of("kind", NoticeKind),)
    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_id)
    kind: Mapped[str] = mapped_column(String(16))
    subject_id: Mapped[UUID]
    at: Mapped[datetime] = mapped_column(default=now)


class WebhookEndpoint(Base):
    __tablename__ = "webhook_endpoints"
    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_id)
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"), index=True)
    url: Mapped[str] = mapped_column(String(2000))
    description: Mapped[str] = mapped_column(String(200), default="")
    event_types: Mapped[list[Any]]
    """Empty: all of them."""
    enabled: Mapped[bool] = mapped_column(default=True)
    disabled_reason: Mapped[str | None] = mapped_column(String(16))
    secret: Mapped[bytes] = mapped_column(LargeBinary())
    previous_secret: Mapped[bytes | None] = mapped_column(LargeBinary())
    previous_until: Mapped[datetime | None]
    created_at: Mapped[datetime] = mapped_column(default=now)

    def hears(self, kind: str) -> bool:
        return not self.event_types or kind in self.event_types


class WebhookEvent(Base):
    """What is told, the same to every endpoint; its id is the message's."""

    __tablename__ = "webhook_events"
    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_id)
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"))
    type: Mapped[str] = mapped_column(String(32))
    data: Mapped[dict[str, Any]]
    completes: Mapped[UUID | None] = mapped_column(unique=True)
    """The erasure that this says is completed: said once, whichever of its batches ended last."""
    at: Mapped[datetime] = mapped_column(index=True)


class WebhookDelivery(Base):
    """One event on its way to one endpoint.

    `attempts` fences: only whoever began the newest attempt may say how it ended. `next_attempt_at` is also
    the lease: a sender puts it off before it sends, and one that dies is followed by another when it is over.
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
    """Attempts since it was last replayed: the place in the schedule."""
    status_code: Mapped[int | None]
    error: Mapped[str | None] = mapped_column(String(32))
    next_attempt_at: Mapped[datetime]
    created_at: Mapped[datetime] = mapped_column(default=now)
    ended_at: Mapped[datetime | None]


_KINDS: Mapping[str, NoticeKind] = {str(kind): kind for kind in NoticeKind}


def note(session: Session, kind: str, subject_id: UUID, at: datetime | None = None) -> None:
    """In the transaction of what happened; a kind that nobody outside cares for is passed over."""
    if kind in _KINDS:
        session.add(WebhookNotice(kind=_KINDS[kind], subject_id=subject_id, at=at or now()))

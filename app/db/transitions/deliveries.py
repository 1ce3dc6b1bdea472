"""State changes of webhook deliveries."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from sqlalchemy import ColumnElement, update
from sqlalchemy.orm import Session

from app.db.webhooks import DeliveryState, WebhookDelivery


def replay_deliveries(
    session: Session, endpoint_id: UUID, now: datetime, condition: ColumnElement[bool]
) -> Sequence[UUID]:
    """delivered or dead → pending, for the deliveries to an endpoint that meet the condition.

    Return their ids. They start again at the first wait of the schedule and keep their message ids. Pending
    deliveries are left alone.
    """
    query = update(WebhookDelivery).where(
        WebhookDelivery.endpoint_id == endpoint_id, WebhookDelivery.state != DeliveryState.PENDING, condition
    )
    pending = query.values(state=DeliveryState.PENDING, tries=0, next_attempt_at=now, ended_at=None)
    return session.scalars(
        pending.returning(WebhookDelivery.id).execution_options(synchronize_session="fetch")
    ).all()


def end_delivery(
    session: Session,
    delivery_id: UUID,
    *,
    attempt: int,
    status: int | None,
    failure: str | None,
    now: datetime,
    retry_at: datetime | None,
) -> bool:
    """pending → delivered or dead, or pending until `retry_at`.

    `failure` is None if the receiver accepted the message. Pass `retry_at` None if this was the last attempt.
    Return False, and change nothing, if a newer attempt has begun or the delivery has already ended.
    """
    values: dict[str, object] = {"status_code": status, "error": failure}
    if failure is None:
        values |= {"state": DeliveryState.DELIVERED, "ended_at": now}
    elif retry_at is None:
        values |= {"state": DeliveryState.DEAD, "ended_at": now}
    else:
        values |= {"next_attempt_at": retry_at}
    query = update(WebhookDelivery).where(
        WebhookDelivery.id == delivery_id,
        WebhookDelivery.attempts == attempt,
        WebhookDelivery.state == DeliveryState.PENDING,
    )
    return session.scalar(query.values(values).returning(WebhookDelivery.id)) is not None

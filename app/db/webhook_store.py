"""Queries on webhook endpoints and deliveries, and the encryption of their secrets.

Changes to a delivery's state are in `transitions`.
"""

import json
from collections import Counter
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Row, Select, and_, delete, func, or_, select, update
from sqlalchemy.orm import Session

from app.core.clock import new_id, now
from app.core.vault import Vault
from app.core.webhooks.signature import message_id
from app.db.webhooks import (
    DeliveryState,
    DisabledReason,
    MessageFormat,
    WebhookDelivery,
    WebhookEndpoint,
    WebhookEvent,
)


def of_tenant(tenant_id: UUID) -> Select[WebhookEndpoint]:
    """Return a query for the endpoints of a tenant."""
    return select(WebhookEndpoint).where(WebhookEndpoint.tenant_id == tenant_id)


def by_id(session: Session, tenant_id: UUID, endpoint_id: UUID, *, lock: bool) -> WebhookEndpoint | None:
    """Return the tenant's endpoint with this id, or None. `lock` locks its row."""
    query = of_tenant(tenant_id).where(WebhookEndpoint.id == endpoint_id)
    return session.scalar(query.with_for_update() if lock else query)


def count(session: Session, tenant_id: UUID) -> int:
    """Count the endpoints of a tenant."""
    counted = select(func.count()).select_from(WebhookEndpoint).where(WebhookEndpoint.tenant_id == tenant_id)
    return session.scalar(counted) or 0


def delete_endpoint(session: Session, endpoint_id: UUID) -> None:
    """Delete an endpoint. The database deletes its deliveries with it."""
    session.execute(delete(WebhookEndpoint).where(WebhookEndpoint.id == endpoint_id))


def disable(session: Session, endpoint: WebhookEndpoint, reason: DisabledReason) -> None:
    """Disable an endpoint, unless its URL has changed since `endpoint` was read."""
    session.execute(
        update(WebhookEndpoint)
        .where(WebhookEndpoint.id == endpoint.id, WebhookEndpoint.url == endpoint.url)
        .values(enabled=False, disabled_reason=DisabledReason(reason))
    )


def seal_secret(vault: Vault, endpoint_id: UUID, secret: str) -> bytes:
    """Encrypt an endpoint's signing secret for storage."""
    return vault.encrypt(secret, row=secret_row(endpoint_id))


def secrets_of(vault: Vault, endpoint: WebhookEndpoint, moment: datetime) -> list[str]:
    """Decrypt the secrets that sign at this moment: the current one, then a replaced one still valid."""
    sealed = [endpoint.secret]
    until = endpoint.previous_until
    if endpoint.previous_secret is not None and until is not None and moment < until:
        sealed.append(endpoint.previous_secret)
    return [vault.decrypt(secret, row=secret_row(endpoint.id)) for secret in sealed]


def secret_row(endpoint_id: UUID) -> str:
    """Return the row that the secrets of an endpoint are bound to."""
    return f"webhook/{endpoint_id}"


def body_of(event: WebhookEvent, envelope: MessageFormat = MessageFormat.STANDARD) -> bytes:
    """Encode an event as the body of a request. Every attempt sends the same bytes."""
    payload = event.payload if envelope == MessageFormat.STANDARD else _cloud_event(event)
    return json.dumps(payload, separators=(",", ":"), sort_keys=True).encode()


def content_type_of(envelope: MessageFormat) -> str:
    """Return the media type of a message's body."""
    return "application/json" if envelope == MessageFormat.STANDARD else "application/cloudevents+json"


def _cloud_event(event: WebhookEvent) -> dict[str, Any]:
    """Return an event in the structured mode of CloudEvents 1.0. `source` and `id` together are unique."""
    return {
        "specversion": "1.0",
        "id": message_id(event.id),
        "source": f"urn:lethe:tenant:{event.tenant_id}",
        "type": f"lethe.{event.type}",
        "time": event.payload["timestamp"],
        "datacontenttype": "application/json",
        "data": event.data,
    }


def deliveries(endpoint_id: UUID, state: DeliveryState | None) -> Select[WebhookDelivery]:
    """Return a query for the deliveries to an endpoint, optionally those in one state."""
    query = select(WebhookDelivery).where(WebhookDelivery.endpoint_id == endpoint_id)
    return query if state is None else query.where(WebhookDelivery.state == state)


def delivery(session: Session, endpoint_id: UUID, delivery_id: UUID) -> WebhookDelivery | None:
    """Return one delivery to an endpoint, or None."""
    return session.scalar(deliveries(endpoint_id, None).where(WebhookDelivery.id == delivery_id))


def delivery_values(endpoint_id: UUID, event_id: UUID) -> dict[str, Any]:
    """Return the columns of a new delivery, due at once. The state's default is `pending`."""
    return {"id": new_id(), "endpoint_id": endpoint_id, "event_id": event_id, "next_attempt_at": now()}


def is_due(moment: datetime, longest: timedelta) -> ColumnElement[bool]:
    """Return the condition that a delivery is due.

    No delivery is ever postponed by more than `longest`. One that appears to be was written before a clock
    jumped back, so it counts as due.
    """
    at = WebhookDelivery.next_attempt_at
    return and_(WebhookDelivery.state == DeliveryState.PENDING, or_(at <= moment, at > moment + longest))


def due(
    session: Session,
    condition: ColumnElement[bool],
    *,
    limit: int,
    per_endpoint: int,
    per_tenant: int,
    busy: Collection[tuple[UUID, UUID]],
) -> Sequence[UUID]:
    """Return the ids of up to `limit` due deliveries: tenants take turns, those waiting longest first.

    `busy` holds the tenant and the endpoint of each delivery that is being sent. Take at most `per_endpoint`
    for one endpoint, none for a busy one, and so many that no tenant occupies more than `per_tenant` senders.
    """
    running = Counter(tenant for tenant, _ in busy)
    endpoints = [endpoint for _, endpoint in busy]
    place = func.row_number().over(
        partition_by=WebhookDelivery.endpoint_id,
        order_by=(WebhookDelivery.next_attempt_at, WebhookDelivery.id),
    )
    ranked = (
        select(
            WebhookDelivery.id,
            WebhookDelivery.next_attempt_at,
            WebhookEndpoint.tenant_id,
            place.label("place"),
        )
        .join(WebhookEndpoint, WebhookEndpoint.id == WebhookDelivery.endpoint_id)
        .where(condition, WebhookEndpoint.enabled.is_(True), WebhookEndpoint.id.not_in(endpoints))
        .subquery()
    )
    first = (ranked.c.next_attempt_at, ranked.c.id)
    turn = func.row_number().over(partition_by=ranked.c.tenant_id, order_by=first)
    turns = (
        select(ranked.c.id, ranked.c.tenant_id, ranked.c.next_attempt_at, turn.label("turn"))
        .where(ranked.c.place <= per_endpoint)
        .subquery()
    )
    # A tenant's deliveries that are being sent have had their turns. At most as many rows are left out below.
    rows = session.execute(
        select(turns.c.id, turns.c.tenant_id, turns.c.turn)
        .where(turns.c.turn <= per_tenant)
        .order_by(turns.c.turn, turns.c.next_attempt_at)
        .limit(limit + len(busy))
    ).all()
    return [row.id for row in rows if row.turn + running[row.tenant_id] <= per_tenant][:limit]


def lock(
    session: Session, ids: Sequence[UUID], condition: ColumnElement[bool]
) -> Sequence[Row[WebhookDelivery, WebhookEndpoint, WebhookEvent]]:
    """Lock and return the deliveries that still meet the condition.

    Rows that another sender has locked are skipped: that sender is about to send them.
    """
    return session.execute(
        select(WebhookDelivery, WebhookEndpoint, WebhookEvent)
        .join(WebhookEndpoint, WebhookEndpoint.id == WebhookDelivery.endpoint_id)
        .join(WebhookEvent, WebhookEvent.id == WebhookDelivery.event_id)
        .where(WebhookDelivery.id.in_(ids), condition)
        .with_for_update(of=WebhookDelivery, skip_locked=True)
    ).all()


def has_expired(session: Session, *, events_before: datetime, secrets_before: datetime) -> bool:
    """Return whether there are events or replaced secrets old enough for `delete_expired`."""
    event = select(WebhookEvent.id).where(WebhookEvent.at < events_before).limit(1)
    secret = select(WebhookEndpoint.id).where(WebhookEndpoint.previous_until < secrets_before).limit(1)
    return session.scalar(event) is not None or session.scalar(secret) is not None


def delete_expired(session: Session, *, events_before: datetime, secrets_before: datetime) -> None:
    """Delete old events with their deliveries, and replaced secrets that no longer sign."""
    session.execute(delete(WebhookEvent).where(WebhookEvent.at < events_before))
    session.execute(
        update(WebhookEndpoint)
        .where(WebhookEndpoint.previous_until < secrets_before)
        .values(previous_secret=None, previous_until=None)
    )

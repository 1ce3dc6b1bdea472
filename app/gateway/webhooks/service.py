"""Webhooks of a tenant: their secrets, test messages, deliveries and replays."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.core.clock import new_id, now
from app.core.settings import Settings
from app.core.vault import Vault
from app.core.webhooks import signature
from app.core.webhooks.sender import Failure
from app.core.webhooks.targets import TargetRefused, parse
from app.db import audit_log, transitions, webhook_store
from app.db.audit_log import Action
from app.db.webhook_store import seal_secret
from app.db.webhooks import (
    PING,
    DeliveryState,
    EventType,
    MessageFormat,
    WebhookDelivery,
    WebhookEndpoint,
    WebhookEvent,
)
from app.gateway.errors import Conflict, InvalidRequest, NotFound
from app.gateway.webhooks.schemas import DeliveryView, WebhookPatch, WebhookRequest, WebhookView

MAX_WEBHOOKS = 20
_DISABLED = "The webhook is disabled. Enable it first."


def create(
    session: Session, vault: Vault, tenant_id: UUID, request: WebhookRequest
) -> tuple[WebhookEndpoint, str]:
    """Create a webhook. Return it with its secret in clear text, which is stored encrypted."""
    if webhook_store.count(session, tenant_id) >= MAX_WEBHOOKS:
        raise Conflict(f"Your tenant already has {MAX_WEBHOOKS} webhooks, the maximum. Delete one first.")
    endpoint_id, secret = new_id(), signature.new_secret()
    endpoint = WebhookEndpoint(
        id=endpoint_id,
        tenant_id=tenant_id,
        url=request.url,
        description=request.description,
        event_types=_sorted_types(request.event_types),
        enabled=request.enabled,
        envelope=request.format.value,
        secret=seal_secret(vault, endpoint_id, secret),
    )
    session.add(endpoint)
    session.flush()
    _record(session, Action.WEBHOOK_CREATED, endpoint, {"event_types": list(endpoint.event_types)})
    return endpoint, secret


def _record(
    session: Session, action: Action, endpoint: WebhookEndpoint, details: dict[str, Any] | None = None
) -> None:
    """Add an entry to the audit log. The URL is not in it, because its path may be a secret."""
    audit_log.record(session, endpoint.tenant_id, action, f"webhook/{endpoint.id}", details)


def get(session: Session, tenant_id: UUID, endpoint_id: UUID, *, lock: bool = False) -> WebhookEndpoint:
    """Return a webhook of the tenant, or raise `NotFound`."""
    endpoint = webhook_store.by_id(session, tenant_id, endpoint_id, lock=lock)
    if endpoint is None:
        raise NotFound("Your tenant has no webhook with this id.")
    return endpoint


def change(session: Session, tenant_id: UUID, endpoint_id: UUID, patch: WebhookPatch) -> WebhookEndpoint:
    """Change the fields of a webhook that the patch contains."""
    endpoint = get(session, tenant_id, endpoint_id, lock=True)
    if patch.url is not None:
        endpoint.url = patch.url
    if patch.event_types is not None:
        endpoint.event_types = _sorted_types(patch.event_types)
    if patch.description is not None:
        endpoint.description = patch.description
    if patch.format is not None:
        endpoint.envelope = patch.format.value
    if patch.enabled is not None:
        endpoint.enabled, endpoint.disabled_reason = patch.enabled, None
    changed = sorted(name for name in patch.model_fields_set if getattr(patch, name) is not None)
    _record(session, Action.WEBHOOK_CHANGED, endpoint, {"fields": changed, "enabled": endpoint.enabled})
    return endpoint


def remove(session: Session, tenant_id: UUID, endpoint_id: UUID) -> None:
    """Delete a webhook and its deliveries."""
    endpoint = get(session, tenant_id, endpoint_id, lock=True)
    webhook_store.delete_endpoint(session, endpoint.id)
    _record(session, Action.WEBHOOK_DELETED, endpoint)


def rotate(
    session: Session, vault: Vault, tenant_id: UUID, endpoint_id: UUID, overlap: timedelta
) -> tuple[WebhookEndpoint, str]:
    """Replace the secret.

    The previous one also signs for the time of `overlap`, an older one no longer does.
    """
    endpoint, secret = get(session, tenant_id, endpoint_id, lock=True), signature.new_secret()
    endpoint.previous_secret, endpoint.previous_until = endpoint.secret, now() + overlap
    if not overlap:  # the secret leaked, so no further message may be signed with it
        endpoint.previous_secret, endpoint.previous_until = None, None
    endpoint.secret = seal_secret(vault, endpoint_id, secret)
    _record(session, Action.WEBHOOK_SECRET_ROTATED, endpoint, {"overlap_hours": overlap / timedelta(hours=1)})
    return endpoint, secret


def ping(session: Session, tenant_id: UUID, endpoint_id: UUID) -> WebhookDelivery:
    """Queue a test message. The dispatcher sends it like any other, but without retries."""
    endpoint = get(session, tenant_id, endpoint_id)
    if not endpoint.enabled:
        raise Conflict(_DISABLED)
    event = WebhookEvent(
        id=new_id(), tenant_id=tenant_id, type=PING, data={"webhook_id": str(endpoint_id)}, at=now()
    )
    delivery = WebhookDelivery(**webhook_store.delivery_values(endpoint_id, event.id))
    session.add(event)
    session.flush()
    session.add(delivery)
    session.flush()
    _record(session, Action.WEBHOOK_TESTED, endpoint)
    return delivery


def get_delivery(session: Session, tenant_id: UUID, endpoint_id: UUID, delivery_id: UUID) -> WebhookDelivery:
    """Return a delivery of the webhook, or raise `NotFound`."""
    delivery = webhook_store.delivery(session, get(session, tenant_id, endpoint_id).id, delivery_id)
    if delivery is None:
        raise NotFound("The webhook has no delivery with this id. Deliveries are deleted after 30 days.")
    return delivery


def replay(session: Session, tenant_id: UUID, endpoint_id: UUID, delivery_id: UUID) -> WebhookDelivery:
    """Send a dead or delivered message again. Raise `Conflict` while it is pending."""
    delivery = get_delivery(session, tenant_id, endpoint_id, delivery_id)
    _require_enabled(session, tenant_id, endpoint_id)
    if not transitions.replay_deliveries(session, endpoint_id, now(), WebhookDelivery.id == delivery_id):
        raise Conflict("The delivery is still pending, so it cannot be replayed.")
    session.refresh(delivery)
    _record(session, Action.WEBHOOK_REPLAYED, get(session, tenant_id, endpoint_id), {"deliveries": 1})
    return delivery


def replay_dead(session: Session, tenant_id: UUID, endpoint_id: UUID) -> int:
    """Send every dead message of a webhook again, and return how many there are."""
    _require_enabled(session, tenant_id, endpoint_id)
    dead = WebhookDelivery.state == DeliveryState.DEAD
    replayed = len(transitions.replay_deliveries(session, endpoint_id, now(), dead))
    _record(session, Action.WEBHOOK_REPLAYED, get(session, tenant_id, endpoint_id), {"deliveries": replayed})
    return replayed


def _require_enabled(session: Session, tenant_id: UUID, endpoint_id: UUID) -> None:
    if not get(session, tenant_id, endpoint_id).enabled:
        raise Conflict(_DISABLED)


def describe_webhook(endpoint: WebhookEndpoint) -> WebhookView:
    """Return a webhook as its tenant sees it, without its secret."""
    until = endpoint.previous_until
    return WebhookView(
        id=endpoint.id,
        url=endpoint.url,
        event_types=[EventType(kind) for kind in endpoint.event_types],
        description=endpoint.description,
        enabled=endpoint.enabled,
        format=MessageFormat(endpoint.envelope),
        disabled_reason=endpoint.disabled_reason,
        old_secret_until=until if until is not None and until > now() else None,
        created_at=endpoint.created_at,
    )


def describe_delivery(session: Session, delivery: WebhookDelivery) -> DeliveryView:
    """Return a delivery as its tenant sees it."""
    return describe_deliveries(session, [delivery])[0]


def describe_deliveries(session: Session, deliveries: Sequence[WebhookDelivery]) -> list[DeliveryView]:
    """Return deliveries as their tenant sees them. Takes one query, however many there are."""
    ids = {delivery.event_id for delivery in deliveries}
    events = {
        event.id: event for event in session.scalars(select(WebhookEvent).where(WebhookEvent.id.in_(ids)))
    }
    return [_delivery_view(delivery, events[delivery.event_id]) for delivery in deliveries]


def _delivery_view(delivery: WebhookDelivery, event: WebhookEvent) -> DeliveryView:
    pending = delivery.state == DeliveryState.PENDING
    return DeliveryView(
        id=delivery.id,
        message_id=signature.message_id(event.id),
        state=DeliveryState(delivery.state),
        attempts=delivery.attempts,
        status_code=delivery.status_code,
        error=Failure(delivery.error) if delivery.error else None,
        next_attempt_at=delivery.next_attempt_at if pending else None,
        payload=event.payload,
        created_at=delivery.created_at,
        ended_at=delivery.ended_at,
    )


def check_target(settings: Settings, url: str) -> None:
    """Raise `InvalidRequest` if the URL itself is not allowed.

    The host name is resolved, and its addresses are checked, whenever a message is sent.
    """
    try:
        parse(url, intranet=settings.webhook_intranet)
    except TargetRefused as problem:
        raise InvalidRequest(str(problem)) from None


def _sorted_types(event_types: list[EventType]) -> list[str]:
    return sorted({str(kind) for kind in event_types})

"""Endpoints of a tenant, their secrets, and a look at what was delivered."""

from datetime import timedelta
from uuid import UUID

from sqlalchemy.orm import Session

from app.clock import new_id, now
from app.db.webhooks import PING, DeliveryState, EventType, WebhookDelivery, WebhookEndpoint, WebhookEvent
from app.errors import Conflict, InvalidRequest, NotFound
from app.settings import Settings
from app.vault import Vault
from app.webhooks import events, repository, signing
from app.webhooks.payload import payload_of, seal_secret
from app.webhooks.schemas import DeliveryShown, WebhookPatch, WebhookRequest, WebhookShown
from app.webhooks.sending import Failure
from app.webhooks.targets import TargetRefused, parse

MOST_ENDPOINTS = 20


def create(
    session: Session, vault: Vault, tenant_id: UUID, wanted: WebhookRequest
) -> tuple[WebhookEndpoint, str]:
    """The endpoint, and its secret in the clear: the only time that it is shown."""
    if repository.count(session, tenant_id) >= MOST_ENDPOINTS:
        raise Conflict(f"A tenant has {MOST_ENDPOINTS} webhooks at most; delete one first.")
    endpoint_id, secret = new_id(), signing.new_secret()
    endpoint = WebhookEndpoint(
        id=endpoint_id,
        tenant_id=tenant_id,
        url=wanted.url,
        description=wanted.description,
        event_types=_types(wanted.event_types),
        enabled=wanted.enabled,
        secret=seal_secret(vault, endpoint_id, secret),
    )
    session.add(endpoint)
    session.flush()
    return endpoint, secret


def get(session: Session, tenant_id: UUID, endpoint_id: UUID, *, lock: bool = False) -> WebhookEndpoint:
    endpoint = repository.by_id(session, tenant_id, endpoint_id, lock=lock)
    if endpoint is None:
        raise NotFound("There is no such webhook.")
    return endpoint


def change(session: Session, tenant_id: UUID, endpoint_id: UUID, wanted: WebhookPatch) -> WebhookEndpoint:
    endpoint = get(session, tenant_id, endpoint_id, lock=True)
    if wanted.url is not None:
        endpoint.url = wanted.url
    if wanted.event_types is not None:
        endpoint.event_types = _types(wanted.event_types)
    if wanted.description is not None:
        endpoint.description = wanted.description
    if wanted.enabled is not None:
        endpoint.enabled, endpoint.disabled_reason = wanted.enabled, None
    return endpoint


def remove(session: Session, tenant_id: UUID, endpoint_id: UUID) -> None:
    repository.delete_endpoint(session, get(session, tenant_id, endpoint_id, lock=True).id)


def rotate(
    session: Session, vault: Vault, tenant_id: UUID, endpoint_id: UUID, overlap: timedelta
) -> tuple[WebhookEndpoint, str]:
    """A new secret; the old one signs beside it for a while. A still older one ends here."""
    endpoint, secret = get(session, tenant_id, endpoint_id, lock=True), signing.new_secret()
    endpoint.previous_secret, endpoint.previous_until = endpoint.secret, now() + overlap
    if not overlap:  # it leaked: not another message with it
        endpoint.previous_secret, endpoint.previous_until = None, None
    endpoint.secret = seal_secret(vault, endpoint_id, secret)
    return endpoint, secret


def ping(session: Session, tenant_id: UUID, endpoint_id: UUID) -> WebhookDelivery:
    """Sent like any other message, by the dispatcher, and once: whoever tests is looking."""
    endpoint = get(session, tenant_id, endpoint_id)
    if not endpoint.enabled:
        raise Conflict("The webhook is disabled; enable it first.")
    event = WebhookEvent(
        id=new_id(), tenant_id=tenant_id, type=PING, data={"webhook_id": str(endpoint_id)}, at=now()
    )
    delivery = WebhookDelivery(**events.delivery_values(endpoint_id, event.id))
    session.add(event)
    session.flush()
    session.add(delivery)
    session.flush()
    return delivery


def delivery(session: Session, tenant_id: UUID, endpoint_id: UUID, delivery_id: UUID) -> WebhookDelivery:
    found = repository.delivery(session, get(session, tenant_id, endpoint_id).id, delivery_id)
    if found is None:
        raise NotFound("There is no such delivery.")
    return found


def replay(session: Session, tenant_id: UUID, endpoint_id: UUID, delivery_id: UUID) -> WebhookDelivery:
    found = delivery(session, tenant_id, endpoint_id, delivery_id)
    _require_enabled(session, tenant_id, endpoint_id)
    if not repository.send_again(session, endpoint_id, now(), WebhookDelivery.id == delivery_id):
        raise Conflict("The delivery is under way already.")
    session.refresh(found)
    return found


def replay_dead(session: Session, tenant_id: UUID, endpoint_id: UUID) -> int:
    _require_enabled(session, tenant_id, endpoint_id)
    dead = WebhookDelivery.state == DeliveryState.DEAD
    return len(repository.send_again(session, endpoint_id, now(), dead))


def _require_enabled(session: Session, tenant_id: UUID, endpoint_id: UUID) -> None:
    if not get(session, tenant_id, endpoint_id).enabled:
        raise Conflict("The webhook is disabled; enable it first.")


def shown(endpoint: WebhookEndpoint) -> WebhookShown:
    until = endpoint.previous_until
    return WebhookShown(
        id=endpoint.id,
        url=endpoint.url,
        event_types=[EventType(kind) for kind in endpoint.event_types],
        description=endpoint.description,
        enabled=endpoint.enabled,
        disabled_reason=endpoint.disabled_reason,
        old_secret_until=until if until is not None and until > now() else None,
        created_at=endpoint.created_at,
    )


def shown_delivery(session: Session, found: WebhookDelivery) -> DeliveryShown:
    event = session.get_one(WebhookEvent, found.event_id)
    pending = found.state == DeliveryState.PENDING
    return DeliveryShown(
        id=found.id,
        message_id=signing.message_id(event.id),
        state=DeliveryState(found.state),
        attempts=found.attempts,
        status_code=found.status_code,
        error=Failure(found.error) if found.error else None,
        next_attempt_at=found.next_attempt_at if pending else None,
        payload=payload_of(event),
        created_at=found.created_at,
        ended_at=found.ended_at,
    )


def check_target(settings: Settings, url: str) -> None:
    """As far as the URL itself says; its name is resolved, and checked, each time something is sent."""
    try:
        parse(url, intranet=settings.webhook_intranet)
    except TargetRefused as problem:
        raise InvalidRequest(str(problem)) from None


def _types(wanted: list[EventType]) -> list[str]:
    return sorted({str(kind) for kind in wanted})

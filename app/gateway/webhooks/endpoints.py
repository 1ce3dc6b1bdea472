from datetime import timedelta
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query, Response

from app.access.guard import CanAdminWebhooks, ServicesOf
from app.db.webhooks import DeliveryState, WebhookDelivery, WebhookEndpoint
from app.paging import Cursor, Limit, Page, paged
from app.webhooks import repository, service
from app.webhooks.schemas import (
    DeliveryShown,
    NewWebhook,
    Replayed,
    Rotation,
    WebhookPatch,
    WebhookRequest,
    WebhookShown,
)

router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"])


@router.post("", status_code=201)
def create_webhook(
    body: WebhookRequest, response: Response, caller: CanAdminWebhooks, services: ServicesOf
) -> NewWebhook:
    """Have events posted to a URL, signed by the Standard Webhooks convention. The secret is shown once."""
    service.check_target(services.settings, body.url)
    vault = services.vault  # opened first: that may be a transaction of its own
    with services.database.writing() as session:
        endpoint, secret = service.create(session, vault, caller.tenant_id, body)
    response.headers["Location"] = f"/v1/webhooks/{endpoint.id}"
    return NewWebhook(**service.shown(endpoint).model_dump(), secret=secret)


@router.get("")
def list_webhooks(
    caller: CanAdminWebhooks, services: ServicesOf, limit: Limit = 50, cursor: Cursor = None
) -> Page[WebhookShown]:
    """Newest first, without their secrets."""
    with services.database.reading() as session:
        return paged(
            session,
            repository.of_tenant(caller.tenant_id),
            WebhookEndpoint.id,
            limit=limit,
            cursor=cursor,
            show=service.shown,
        )


@router.get("/{webhook_id}")
def get_webhook(webhook_id: UUID, caller: CanAdminWebhooks, services: ServicesOf) -> WebhookShown:
    """Where it leads, what it hears, and whether it is enabled."""
    with services.database.reading() as session:
        return service.shown(service.get(session, caller.tenant_id, webhook_id))


@router.patch("/{webhook_id}")
def change_webhook(
    webhook_id: UUID, body: WebhookPatch, caller: CanAdminWebhooks, services: ServicesOf
) -> WebhookShown:
    """Change some of it. Enabling one that answered 410 lets what waited go on."""
    if body.url is not None:
        service.check_target(services.settings, body.url)
    with services.database.writing() as session:
        return service.shown(service.change(session, caller.tenant_id, webhook_id, body))


@router.delete("/{webhook_id}", status_code=204)
def delete_webhook(webhook_id: UUID, caller: CanAdminWebhooks, services: ServicesOf) -> None:
    """At once, with everything that waits to be delivered there."""
    with services.database.writing() as session:
        service.remove(session, caller.tenant_id, webhook_id)


@router.post("/{webhook_id}/rotate")
def rotate_webhook_secret(
    webhook_id: UUID, body: Rotation, caller: CanAdminWebhooks, services: ServicesOf
) -> NewWebhook:
    """Make a new secret, shown once. For `overlap_hours` messages carry a signature by each of the two."""
    overlap, vault = timedelta(hours=body.overlap_hours), services.vault
    with services.database.writing() as session:
        endpoint, secret = service.rotate(session, vault, caller.tenant_id, webhook_id, overlap)
    return NewWebhook(**service.shown(endpoint).model_dump(), secret=secret)


@router.post("/{webhook_id}/test", status_code=202)
def test_webhook(
    webhook_id: UUID, response: Response, caller: CanAdminWebhooks, services: ServicesOf
) -> DeliveryShown:
    """Have a `webhook.ping` sent, once; the delivery says how it went."""
    with services.database.writing() as session:
        sent = service.ping(session, caller.tenant_id, webhook_id)
        _follow(response, webhook_id, sent.id)
        return service.shown_delivery(session, sent)


@router.get("/{webhook_id}/deliveries")
def list_deliveries(
    webhook_id: UUID,
    caller: CanAdminWebhooks,
    services: ServicesOf,
    state: Annotated[DeliveryState | None, Query(description="`dead`: those that were given up.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[DeliveryShown]:
    """Newest first, of the last 30 days."""
    with services.database.reading() as session:
        endpoint = service.get(session, caller.tenant_id, webhook_id)
        return paged(
            session,
            repository.deliveries(endpoint.id, state),
            WebhookDelivery.id,
            limit=limit,
            cursor=cursor,
            show=lambda found: service.shown_delivery(session, found),
        )


@router.get("/{webhook_id}/deliveries/{delivery_id}")
def get_delivery(
    webhook_id: UUID, delivery_id: UUID, caller: CanAdminWebhooks, services: ServicesOf
) -> DeliveryShown:
    """State, attempts, and how the newest one ended."""
    with services.database.reading() as session:
        found = service.delivery(session, caller.tenant_id, webhook_id, delivery_id)
        return service.shown_delivery(session, found)


@router.post("/{webhook_id}/deliveries/{delivery_id}/replay", status_code=202)
def replay_delivery(
    webhook_id: UUID, delivery_id: UUID, response: Response, caller: CanAdminWebhooks, services: ServicesOf
) -> DeliveryShown:
    """Send a dead or delivered message again, under the same `webhook-id`."""
    with services.database.writing() as session:
        found = service.replay(session, caller.tenant_id, webhook_id, delivery_id)
        _follow(response, webhook_id, delivery_id)
        return service.shown_delivery(session, found)


@router.post("/{webhook_id}/replay", status_code=202)
def replay_dead(webhook_id: UUID, caller: CanAdminWebhooks, services: ServicesOf) -> Replayed:
    """Send every dead message again."""
    with services.database.writing() as session:
        return Replayed(replayed=service.replay_dead(session, caller.tenant_id, webhook_id))


def _follow(response: Response, webhook_id: UUID, delivery_id: UUID) -> None:
    response.headers["Location"] = f"/v1/webhooks/{webhook_id}/deliveries/{delivery_id}"
    response.headers["Retry-After"] = "1"

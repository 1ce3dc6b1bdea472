"""Endpoints for webhooks and their deliveries."""

from datetime import timedelta
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query, Response

from app.db import webhook_store
from app.db.webhooks import DeliveryState, WebhookDelivery, WebhookEndpoint
from app.gateway.auth.guard import CanAdminWebhooks, ServicesOf
from app.gateway.json_body import JsonRoute
from app.gateway.pagination import Cursor, Limit, Page, fetch_page
from app.gateway.webhooks import service
from app.gateway.webhooks.schemas import (
    DeliveryView,
    NewWebhook,
    ReplayResult,
    Rotation,
    WebhookPatch,
    WebhookRequest,
    WebhookView,
)

router = APIRouter(prefix="/v1/webhooks", route_class=JsonRoute, tags=["webhooks"])


@router.post("", status_code=201)
def create_webhook(
    body: WebhookRequest, response: Response, caller: CanAdminWebhooks, services: ServicesOf
) -> NewWebhook:
    """Register a URL that receives events as signed messages (Standard Webhooks).

    The secret is shown once.
    """
    service.check_target(services.settings, body.url)
    vault = services.vault  # opened first, because that may take a transaction of its own
    with services.database.writing() as session:
        endpoint, secret = service.create(session, vault, caller.tenant_id, body)
    response.headers["Location"] = f"/v1/webhooks/{endpoint.id}"
    return NewWebhook(**service.describe_webhook(endpoint).model_dump(), secret=secret)


@router.get("")
def list_webhooks(
    caller: CanAdminWebhooks, services: ServicesOf, limit: Limit = 50, cursor: Cursor = None
) -> Page[WebhookView]:
    """List your tenant's webhooks, newest first, without their secrets."""
    with services.database.reading() as session:
        return fetch_page(
            session,
            webhook_store.of_tenant(caller.tenant_id),
            WebhookEndpoint.id,
            limit=limit,
            cursor=cursor,
            describe=lambda webhooks: [service.describe_webhook(webhook) for webhook in webhooks],
        )


@router.get("/{webhook_id}")
def get_webhook(webhook_id: UUID, caller: CanAdminWebhooks, services: ServicesOf) -> WebhookView:
    """Return a webhook: its URL, its events, and whether it is enabled."""
    with services.database.reading() as session:
        return service.describe_webhook(service.get(session, caller.tenant_id, webhook_id))


@router.patch("/{webhook_id}")
def change_webhook(
    webhook_id: UUID, body: WebhookPatch, caller: CanAdminWebhooks, services: ServicesOf
) -> WebhookView:
    """Change fields of a webhook.

    If you enable a webhook that answered 410, its pending deliveries continue.
    """
    if body.url is not None:
        service.check_target(services.settings, body.url)
    with services.database.writing() as session:
        return service.describe_webhook(service.change(session, caller.tenant_id, webhook_id, body))


@router.delete("/{webhook_id}", status_code=204)
def delete_webhook(webhook_id: UUID, caller: CanAdminWebhooks, services: ServicesOf) -> None:
    """Delete a webhook and its deliveries at once, including pending ones."""
    with services.database.writing() as session:
        service.remove(session, caller.tenant_id, webhook_id)


@router.post("/{webhook_id}/rotate")
def rotate_webhook_secret(
    webhook_id: UUID, body: Rotation, caller: CanAdminWebhooks, services: ServicesOf
) -> NewWebhook:
    """Create a new secret, which is shown once.

    For `overlap_hours`, messages carry signatures by both secrets.
    """
    overlap, vault = timedelta(hours=body.overlap_hours), services.vault
    with services.database.writing() as session:
        endpoint, secret = service.rotate(session, vault, caller.tenant_id, webhook_id, overlap)
    return NewWebhook(**service.describe_webhook(endpoint).model_dump(), secret=secret)


@router.post("/{webhook_id}/test", status_code=202)
def test_webhook(
    webhook_id: UUID, response: Response, caller: CanAdminWebhooks, services: ServicesOf
) -> DeliveryView:
    """Send a `webhook.ping` message once. The delivery shows the result."""
    with services.database.writing() as session:
        delivery = service.ping(session, caller.tenant_id, webhook_id)
        _set_location(response, webhook_id, delivery.id)
        return service.describe_delivery(session, delivery)


@router.get("/{webhook_id}/deliveries")
def list_deliveries(
    webhook_id: UUID,
    caller: CanAdminWebhooks,
    services: ServicesOf,
    state: Annotated[
        DeliveryState | None,
        Query(description="Only deliveries in this state. `dead`: all attempts failed."),
    ] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[DeliveryView]:
    """List the deliveries of a webhook in the last 30 days, newest first."""
    with services.database.reading() as session:
        endpoint = service.get(session, caller.tenant_id, webhook_id)
        return fetch_page(
            session,
            webhook_store.deliveries(endpoint.id, state),
            WebhookDelivery.id,
            limit=limit,
            cursor=cursor,
            describe=lambda deliveries: service.describe_deliveries(session, deliveries),
        )


@router.get("/{webhook_id}/deliveries/{delivery_id}")
def get_delivery(
    webhook_id: UUID, delivery_id: UUID, caller: CanAdminWebhooks, services: ServicesOf
) -> DeliveryView:
    """Return a delivery: its state, the number of attempts, and how the last one ended."""
    with services.database.reading() as session:
        delivery = service.get_delivery(session, caller.tenant_id, webhook_id, delivery_id)
        return service.describe_delivery(session, delivery)


@router.post("/{webhook_id}/deliveries/{delivery_id}/replay", status_code=202)
def replay_delivery(
    webhook_id: UUID, delivery_id: UUID, response: Response, caller: CanAdminWebhooks, services: ServicesOf
) -> DeliveryView:
    """Send a dead or delivered message again, with the same `webhook-id`."""
    with services.database.writing() as session:
        delivery = service.replay(session, caller.tenant_id, webhook_id, delivery_id)
        _set_location(response, webhook_id, delivery_id)
        return service.describe_delivery(session, delivery)


@router.post("/{webhook_id}/replay", status_code=202, summary="Replay dead deliveries")
def replay_dead(webhook_id: UUID, caller: CanAdminWebhooks, services: ServicesOf) -> ReplayResult:
    """Send every dead message of a webhook again."""
    with services.database.writing() as session:
        return ReplayResult(replayed=service.replay_dead(session, caller.tenant_id, webhook_id))


def _set_location(response: Response, webhook_id: UUID, delivery_id: UUID) -> None:
    response.headers["Location"] = f"/v1/webhooks/{webhook_id}/deliveries/{delivery_id}"
    response.headers["Retry-After"] = "1"

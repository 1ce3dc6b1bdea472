"""The endpoints for webhooks and their deliveries."""

from collections.abc import Mapping, Sequence
from typing import Any

from lethe.client.endpoints import EndpointGroup, Id, path
from lethe.client.operations import D, ItemStream, Procedure, Request, listing, operation
from lethe.client.responses import Delivery, NewWebhook, ReplayResult, Webhook
from lethe.client.transport import exchange


class Webhooks(EndpointGroup[D]):
    """Register URLs that receive events as signed messages, and look after the deliveries."""

    @operation
    def create(
        self,
        url: str,
        *,
        event_types: Sequence[str] = (),
        description: str = "",
        enabled: bool = True,
        format: str = "standard",  # noqa: A002
    ) -> Procedure[NewWebhook]:
        """Register a URL. Without `event_types`, it receives all events.

        With the format `cloudevents`, each body is a CloudEvents 1.0 envelope.

        Store the secret of the response: it cannot be fetched again.
        """
        body = {
            "url": url,
            "event_types": [*event_types],
            "description": description,
            "enabled": enabled,
            "format": format,
        }
        return self._post("/v1/webhooks", NewWebhook, body)

    @operation
    def get(self, webhook_id: Id) -> Procedure[Webhook]:
        """Return one webhook, without its secret."""
        return self._get(path("webhooks", webhook_id), Webhook)

    @listing
    def list(self, *, limit: int | None = None) -> ItemStream[Webhook]:
        """Iterate over the webhooks, newest first."""
        return self._get_pages("/v1/webhooks", Webhook, limit)

    @operation
    def change(self, webhook_id: Id, change: Mapping[str, Any]) -> Procedure[Webhook]:
        """Change fields of a webhook: `url`, `event_types`, `description`, `enabled` or `format`."""
        request = Request("PATCH", path("webhooks", webhook_id), json=dict(change))
        return self._request(request, Webhook)

    @operation
    def delete(self, webhook_id: Id) -> Procedure[None]:
        """Delete a webhook and its deliveries, including pending ones."""
        yield from exchange(Request("DELETE", path("webhooks", webhook_id)), self._retry)

    @operation
    def rotate(self, webhook_id: Id, *, overlap_hours: float = 24.0) -> Procedure[NewWebhook]:
        """Create a new secret. For `overlap_hours`, messages are signed with both secrets."""
        body = {"overlap_hours": overlap_hours}
        return self._post(path("webhooks", webhook_id, "rotate"), NewWebhook, body)

    @operation
    def test(self, webhook_id: Id) -> Procedure[Delivery]:
        """Send a `webhook.ping` message once. Fetch the delivery to see the result."""
        return self._post(path("webhooks", webhook_id, "test"), Delivery)

    @listing
    def deliveries(
        self, webhook_id: Id, *, state: str | None = None, limit: int | None = None
    ) -> ItemStream[Delivery]:
        """Iterate over the deliveries of the last 30 days, newest first; `state` is e.g. `dead`."""
        return self._get_pages(path("webhooks", webhook_id, "deliveries"), Delivery, limit, state=state)

    @operation
    def get_delivery(self, webhook_id: Id, delivery_id: Id) -> Procedure[Delivery]:
        """Return one delivery."""
        return self._get(path("webhooks", webhook_id, "deliveries", delivery_id), Delivery)

    @operation
    def replay(self, webhook_id: Id, delivery_id: Id) -> Procedure[Delivery]:
        """Send a dead or delivered message again, with the same `webhook-id`."""
        return self._post(path("webhooks", webhook_id, "deliveries", delivery_id, "replay"), Delivery)

    @operation
    def replay_dead(self, webhook_id: Id) -> Procedure[ReplayResult]:
        """Send every dead message of a webhook again."""
        return self._post(path("webhooks", webhook_id, "replay"), ReplayResult)

"""What is sent: type, time and ids. Who wants to know more asks, with a key that may."""

import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from app.db.webhooks import WebhookEndpoint, WebhookEvent
from app.vault import Vault


def payload_of(event: WebhookEvent) -> dict[str, Any]:
    at = event.at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {"type": event.type, "timestamp": at, "data": event.data}


def body_of(event: WebhookEvent) -> bytes:
    """The same bytes at every attempt."""
    return json.dumps(payload_of(event), separators=(",", ":"), sort_keys=True).encode()


def seal_secret(vault: Vault, endpoint_id: UUID, secret: str) -> bytes:
    return vault.encrypt(secret, row=_row(endpoint_id))


def secrets_of(vault: Vault, endpoint: WebhookEndpoint, moment: datetime) -> list[str]:
    """The newest first; the one before as long as it is valid."""
    sealed = [endpoint.secret]
    until = endpoint.previous_until
    if endpoint.previous_secret is not None and until is not None and moment < until:
        sealed.append(endpoint.previous_secret)
    return [vault.decrypt(secret, row=_row(endpoint.id)) for secret in sealed]


def _row(endpoint_id: UUID) -> str:
    return f"webhook/{endpoint_id}"

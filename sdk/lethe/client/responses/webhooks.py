"""Webhooks and their deliveries."""

from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import Field

from lethe.client.responses.base import Response


class Webhook(Response):
    """A URL that receives events as signed messages, without its secret. No `event_types`: all events."""

    id: UUID
    url: str
    event_types: tuple[str, ...]
    description: str
    enabled: bool
    format: str
    disabled_reason: str | None
    old_secret_until: datetime | None
    created_at: datetime


class NewWebhook(Webhook):
    """A webhook with its new secret. The service returns `secret` only once."""

    secret: str = Field(repr=False)


class Delivery(Response):
    """One message on its way to one webhook. `dead` means that all attempts failed."""

    id: UUID
    message_id: str
    state: str
    attempts: int
    status_code: int | None
    error: str | None
    next_attempt_at: datetime | None
    payload: dict[str, Any]
    created_at: datetime
    ended_at: datetime | None


class ReplayResult(Response):
    """How many dead deliveries are sent again."""

    replayed: int

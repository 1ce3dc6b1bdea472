"""API keys, callers and the audit log."""

from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import Field

from lethe.client.responses.base import Response


class ApiKey(Response):
    """An API key, without its secret."""

    id: UUID
    name: str
    scopes: tuple[str, ...]
    created_at: datetime
    revoked_at: datetime | None


class NewApiKey(ApiKey):
    """A new API key. The service returns `secret` only once, and keeps no copy of it."""

    secret: str = Field(repr=False)


class Identity(Response):
    """The tenant and the API key that a request belongs to."""

    tenant: str
    key_id: UUID
    key_name: str
    scopes: tuple[str, ...]


class AuditActor(Response):
    """Who did something."""

    kind: str
    id: str
    name: str


class AuditEntry(Response):
    """One entry of the audit log."""

    sequence: int
    at: datetime
    actor: AuditActor
    action: str
    target: str
    details: dict[str, Any]
    hash: str

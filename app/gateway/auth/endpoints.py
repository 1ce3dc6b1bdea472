"""Endpoints and schemas for API keys."""

from datetime import datetime
from uuid import UUID

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from app.db.tables import ApiKey
from app.gateway.auth import service
from app.gateway.auth.guard import CallersOf, HasKey, IsAdmin, ServicesOf
from app.gateway.auth.scopes import Scope
from app.gateway.errors import NotFound
from app.gateway.json_body import JsonRoute
from lethe.certificate.validation import PLAIN_TEXT

router = APIRouter(prefix="/v1", route_class=JsonRoute, tags=["access"])


class KeyRequest(BaseModel):
    """The key to create."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"name": "intake form", "scopes": ["erasures:write"]}]},
    )

    name: str = Field(
        min_length=1,
        max_length=100,
        pattern=PLAIN_TEXT,
        description="What the key is for. Shown in the list of keys.",
    )
    scopes: list[Scope] = Field(
        min_length=1, max_length=len(Scope), description="What the key allows. `admin` allows everything."
    )


class Key(BaseModel):
    """An API key without its secret."""

    id: UUID
    name: str = Field(description="What the key is for.")
    scopes: list[Scope] = Field(description="What the key allows.")
    created_at: datetime
    revoked_at: datetime | None = Field(description="When the key was revoked. Null while it is valid.")


class Identity(BaseModel):
    """The tenant and the API key of a request."""

    tenant: str = Field(description="The name of your tenant.")
    key_id: UUID = Field(description="The id of the key.")
    key_name: str = Field(description="What the key is for.")
    scopes: list[Scope] = Field(description="What the key allows.")


class NewKey(Key):
    """An API key that was just created, with its secret."""

    secret: str = Field(
        description="Send it as `Authorization: Bearer …`. Shown once: only its hash is stored."
    )


@router.post("/api-keys", status_code=201)
def create_api_key(body: KeyRequest, caller: IsAdmin, services: ServicesOf) -> NewKey:
    """Create an API key for your tenant. The secret is shown in this answer only."""
    with services.database.writing() as session:
        created = service.add_key(session, caller.tenant_id, name=body.name, scopes=body.scopes)
    return NewKey(**_view_of(created.record).model_dump(), secret=created.secret)


@router.get("/api-keys")
def list_api_keys(caller: IsAdmin, services: ServicesOf) -> list[Key]:
    """List your tenant's API keys, oldest first, without their secrets."""
    with services.database.reading() as session:
        return [_view_of(record) for record, _ in service.list_keys(session, caller.tenant_id)]


@router.delete("/api-keys/{key_id}")
def revoke_api_key(key_id: UUID, caller: IsAdmin, services: ServicesOf, callers: CallersOf) -> Key:
    """Revoke an API key. This gateway refuses it at once, other gateways within two seconds."""
    with services.database.writing() as session:
        try:
            revoked = service.revoke_key(session, key_id, caller.tenant_id)
        except service.AccessError:
            raise NotFound("Your tenant has no API key with this id.") from None
    callers.forget(key_id)
    return _view_of(revoked)


@router.get("/whoami")
def whoami(caller: HasKey, services: ServicesOf) -> Identity:
    """Say which tenant and which API key this request belongs to. Every valid key may ask."""
    assert caller.key_id is not None  # the Authorization header carries an API key
    with services.database.reading() as session:
        record, tenant = service.key_with_tenant(session, caller.key_id)
    return Identity(
        tenant=tenant.name, key_id=record.id, key_name=record.name, scopes=[Scope(s) for s in record.scopes]
    )


def _view_of(record: ApiKey) -> Key:
    return Key.model_validate(record, from_attributes=True)

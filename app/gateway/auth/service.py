"""API keys: creating, listing, revoking and checking them.

A key belongs to one tenant. Its secret is random, shown once, and stored as a hash.
"""

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Row, select
from sqlalchemy.orm import Session

from app.core.clock import new_id, now
from app.db import audit_log
from app.db.audit_log import Action
from app.db.tables import ApiKey, Tenant
from app.gateway.auth.caller import Caller
from app.gateway.auth.scopes import Scope
from lethe.certificate.audit_log import Actor

PREFIX = "lethe"


class AccessError(Exception):
    """There is no such key."""


@dataclass(frozen=True)
class CreatedKey:
    """A new key, with its secret in clear text. The secret cannot be recovered later."""

    record: ApiKey
    secret: str


def create_key(session: Session, *, tenant: str, name: str, scopes: Sequence[Scope]) -> CreatedKey:
    """Create a key for the tenant with this name. Create the tenant too if it does not exist."""
    owner = session.scalar(select(Tenant).where(Tenant.name == tenant))
    if owner is None:
        owner = Tenant(id=new_id(), name=tenant)
        session.add(owner)
        session.flush()
    return add_key(session, owner.id, name=name, scopes=scopes)


def add_key(session: Session, tenant_id: UUID, *, name: str, scopes: Sequence[Scope]) -> CreatedKey:
    """Create a key for an existing tenant."""
    key_id, secret = new_id(), secrets.token_urlsafe(32)
    record = ApiKey(
        id=key_id,
        tenant_id=tenant_id,
        name=name,
        digest=_digest(secret),
        scopes=sorted(set(scopes)),
        created_at=now(),
    )
    session.add(record)
    session.flush()
    audit_log.record(
        session,
        tenant_id,
        Action.KEY_CREATED,
        f"api-key/{key_id}",
        {"name": name, "scopes": [str(scope) for scope in record.scopes]},
    )
    return CreatedKey(record, f"{PREFIX}_{key_id.hex}_{secret}")


def authenticate(session: Session, credentials: str) -> Caller | None:
    """Return the caller whose key is `credentials`, or None if the key is unknown or revoked."""
    prefix, _, rest = credentials.partition("_")
    identifier, _, secret = rest.partition("_")
    try:
        key_id = UUID(hex=identifier)
    except ValueError:
        return None
    record = live_key(session, key_id) if prefix == PREFIX else None
    # A random 256-bit secret needs no slow hash: it cannot be guessed.
    if record is None or not hmac.compare_digest(record.digest, _digest(secret)):
        return None
    return caller_of(record)


def caller_of(record: ApiKey) -> Caller:
    """Return the caller that a valid API key stands for."""
    actor = Actor(kind="api-key", id=str(record.id), name=record.name)
    return Caller(record.tenant_id, record.id, frozenset(record.scopes), actor)


def live_key(session: Session, key_id: UUID) -> ApiKey | None:
    """Return the key with this id, or None if there is none or it is revoked."""
    return session.scalar(select(ApiKey).where(ApiKey.id == key_id, ApiKey.revoked_at.is_(None)))


def list_keys(session: Session, tenant_id: UUID | None = None) -> Sequence[Row[ApiKey, Tenant]]:
    """Return keys with their tenants, oldest first: of one tenant, or of all of them."""
    query = select(ApiKey, Tenant).join(Tenant, Tenant.id == ApiKey.tenant_id).order_by(ApiKey.id)
    return session.execute(query if tenant_id is None else query.where(ApiKey.tenant_id == tenant_id)).all()


def key_with_tenant(session: Session, key_id: UUID) -> Row[ApiKey, Tenant]:
    """Return an existing key with its tenant."""
    query = select(ApiKey, Tenant).join(Tenant, Tenant.id == ApiKey.tenant_id).where(ApiKey.id == key_id)
    return session.execute(query).one()


def revoke_key(session: Session, key_id: UUID, tenant_id: UUID | None = None) -> ApiKey:
    """Revoke a key: of one tenant, or of any. Revoking it again changes nothing."""
    query = select(ApiKey).where(ApiKey.id == key_id)
    record = session.scalar(query if tenant_id is None else query.where(ApiKey.tenant_id == tenant_id))
    if record is None:
        raise AccessError(f"There is no API key {key_id}.")
    if record.revoked_at is None:
        record.revoked_at = now()
        target = f"api-key/{key_id}"
        audit_log.record(session, record.tenant_id, Action.KEY_REVOKED, target, {"name": record.name})
    return record


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()

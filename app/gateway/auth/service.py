"""API keys: random, shown once, stored hashed. A key belongs to one tenant."""

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Row
from sqlalchemy.orm import Session

from app.access import repository
from app.access.cache import Caller
from app.access.scopes import Scope
from app.clock import new_id, now
from app.db.tables import ApiKey, Tenant

PREFIX = "lethe"


class AccessError(Exception):
    pass


@dataclass(frozen=True)
class MadeKey:
    record: ApiKey
    secret: str


def create_key(session: Session, *, tenant: str, name: str, scopes: Sequence[Scope]) -> MadeKey:
    owner = repository.tenant_by_name(session, tenant)
    if owner is None:
        owner = Tenant(id=new_id(), name=tenant)
        session.add(owner)
        session.flush()
    return add_key(session, owner.id, name=name, scopes=scopes)


def add_key(session: Session, tenant_id: UUID, *, name: str, scopes: Sequence[Scope]) -> MadeKey:
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
    return MadeKey(record, f"{PREFIX}_{key_id.hex}_{secret}")


def authenticate(session: Session, presented: str) -> Caller | None:
    prefix, _, rest = presented.partition("_")
    identifier, _, secret = rest.partition("_")
    try:
        key_id = UUID(hex=identifier)
    except ValueError:
        return None
    record = repository.live_key(session, key_id) if prefix == PREFIX else None
    # A random 256-bit secret needs no slow hash: there is nothing to guess.
    if record is None or not hmac.compare_digest(record.digest, _digest(secret)):
        return None
    return Caller(record.tenant_id, record.id, frozenset(record.scopes))


def list_keys(session: Session, tenant_id: UUID | None = None) -> Sequence[Row[ApiKey, Tenant]]:
    return repository.keys(session, tenant_id)


def revoke_key(session: Session, key_id: UUID, tenant_id: UUID | None = None) -> ApiKey:
    record = repository.key(session, key_id, tenant_id)
    if record is None:
        raise AccessError(f"no key {key_id}")
    record.revoked_at = record.revoked_at or now()
    return record


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()

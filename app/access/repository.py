from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import Row, select
from sqlalchemy.orm import Session

from app.db.tables import ApiKey, Tenant


def tenant_by_name(session: Session, name: str) -> Tenant | None:
    return session.scalar(select(Tenant).where(Tenant.name == name))


def live_key(session: Session, key_id: UUID) -> ApiKey | None:
    return session.scalar(select(ApiKey).where(ApiKey.id == key_id, ApiKey.revoked_at.is_(None)))


def keys(session: Session, tenant_id: UUID | None = None) -> Sequence[Row[ApiKey, Tenant]]:
    query = select(ApiKey, Tenant).join(Tenant, Tenant.id == ApiKey.tenant_id).order_by(ApiKey.id)
    return session.execute(query if tenant_id is None else query.where(ApiKey.tenant_id == tenant_id)).all()


def key(session: Session, key_id: UUID, tenant_id: UUID | None = None) -> ApiKey | None:
    query = select(ApiKey).where(ApiKey.id == key_id)
    return session.scalar(query if tenant_id is None else query.where(ApiKey.tenant_id == tenant_id))

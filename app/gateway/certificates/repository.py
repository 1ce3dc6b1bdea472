"""SQL queries on certificates."""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from app.db.tables import Certificate, Model, Version


def of_tenant(tenant_id: UUID) -> Select[Certificate]:
    """Select the certificates of a tenant.

    With a join, SQLite would sort all of them, which are large rows, to find the newest.
    """
    own = select(Model.id).where(Model.id == Certificate.model_id, Model.tenant_id == tenant_id)
    return select(Certificate).where(own.exists())


def by_id(session: Session, certificate_id: UUID, tenant_id: UUID | None) -> Certificate | None:
    """Return a certificate of the tenant, or None.

    Without `tenant_id`, of any tenant: certificates are public.
    """
    query = select(Certificate) if tenant_id is None else of_tenant(tenant_id)
    return session.scalar(query.where(Certificate.id == certificate_id))


def chain_before(session: Session, certificate: Certificate) -> Sequence[Certificate]:
    """Return the predecessors that offline verification needs: those since the last retraining, and it."""
    earlier = select(Certificate).where(
        Certificate.model_id == certificate.model_id, Certificate.chain_index < certificate.chain_index
    )
    reset = session.scalar(
        earlier.where(Certificate.mechanism == "retrain").order_by(Certificate.chain_index.desc()).limit(1)
    )
    since = earlier if reset is None else earlier.where(Certificate.chain_index >= reset.chain_index)
    return session.scalars(since.order_by(Certificate.chain_index)).all()


def certified_version(session: Session, certificate_id: UUID) -> Version | None:
    """Return the version that a certificate was issued for. None if its draw was discarded."""
    return session.scalar(select(Version).where(Version.certificate_id == certificate_id))

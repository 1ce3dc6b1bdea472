from collections.abc import Callable, Sequence
from uuid import UUID

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from app.db.tables import Certificate, LogHead, LogNode, Model, SigningKeyRecord


def of_tenant(tenant_id: UUID) -> Select[Certificate]:
    return (
        select(Certificate).join(Model, Model.id == Certificate.model_id).where(Model.tenant_id == tenant_id)
    )


def by_id(session: Session, certificate_id: UUID, tenant_id: UUID | None) -> Certificate | None:
    """`tenant_id` None: a single certificate that the operator opened to the public."""
    query = select(Certificate) if tenant_id is None else of_tenant(tenant_id)
    return session.scalar(query.where(Certificate.id == certificate_id))


def chain_before(session: Session, certificate: Certificate) -> Sequence[Certificate]:
    """The predecessors that offline verification needs: from the last retraining on."""
    earlier = select(Certificate).where(
        Certificate.model_id == certificate.model_id, Certificate.chain_index < certificate.chain_index
    )
    reset = session.scalar(
        earlier.where(Certificate.mechanism == "retrain").order_by(Certificate.chain_index.desc()).limit(1)
    )
    since = earlier if reset is None else earlier.where(Certificate.chain_index >= reset.chain_index)
    return session.scalars(since.order_by(Certificate.chain_index)).all()


def log_head(session: Session) -> LogHead | None:
    return session.get(LogHead, 1)


def node_reader(session: Session) -> Callable[[int, int], bytes]:
    def node(level: int, position: int) -> bytes:
        return session.get_one(LogNode, (level, position)).hash

    return node


def signing_keys(session: Session) -> Sequence[SigningKeyRecord]:
    return session.scalars(select(SigningKeyRecord).order_by(SigningKeyRecord.valid_from)).all()

from collections.abc import Callable, Sequence
from typing import TypeVar
from uuid import UUID

from sqlalchemy import Select, select, tuple_
from sqlalchemy.orm import Session

from app.db.tables import Certificate, LogHead, LogNode, Model, SigningKeyRecord
from certificate import merkle

T = TypeVar("T")
NODES_IN_A_QUERY = 400  # two parameters each: SQLite takes a thousand at least


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


def over_log(session: Session, computation: Callable[[merkle.NodeReader], T]) -> T:
    """Compute proofs or a root over the log; the O(log n) nodes each reads come in one query for many."""
    wanted = sorted(set(merkle.reads_of(computation)))
    nodes: dict[tuple[int, int], bytes] = {}
    for first in range(0, len(wanted), NODES_IN_A_QUERY):
        rows = session.execute(
            select(LogNode.level, LogNode.position, LogNode.hash).where(
                tuple_(LogNode.level, LogNode.position).in_(wanted[first : first + NODES_IN_A_QUERY])
            )
        )
        nodes.update({(level, position): value for level, position, value in rows})
    return computation(lambda level, position: nodes[level, position])


def signing_keys(session: Session) -> Sequence[SigningKeyRecord]:
    return session.scalars(select(SigningKeyRecord).order_by(SigningKeyRecord.valid_from)).all()

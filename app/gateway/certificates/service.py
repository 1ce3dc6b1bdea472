"""Certificates, packs and proofs from the certificate log.

The gateway has no private key and signs nothing.
"""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy.orm import Session

from app.db import log_store
from app.db.tables import Certificate, LogHead
from app.gateway.certificates import repository
from app.gateway.certificates.schemas import ConsistencyProof, InclusionProof
from app.gateway.errors import Gone, InvalidRequest, NotFound
from app.gateway.sentences import describe_deleted_evidence
from lethe.certificate import envelope, merkle
from lethe.certificate.keys import KeySet, PublicKey
from lethe.certificate.pack import LoggedEnvelope, Pack, build_pack


def get(session: Session, certificate_id: UUID, tenant_id: UUID | None) -> Certificate:
    """Return a certificate of the tenant, or raise `NotFound`. Without `tenant_id`, of any tenant."""
    certificate = repository.by_id(session, certificate_id, tenant_id)
    if certificate is None:
        raise NotFound("There is no certificate with this id.")
    return certificate


def evidence(certificate: Certificate) -> bytes:
    """Return the evidence of a certificate, or raise `Gone` if it was deleted."""
    if certificate.evidence_deleted_at is not None:
        raise Gone(describe_deleted_evidence(certificate.evidence_deleted_at))
    return certificate.evidence


def key_set(session: Session) -> KeySet:
    """Return all public signing keys, each with the positions of the log that it may sign."""
    return KeySet(
        keys=tuple(
            PublicKey(
                key_id=record.key_id,
                pem=record.public_pem,
                valid_from=record.valid_from,
                valid_until=record.valid_until,
            )
            for record in log_store.signing_keys(session)
        )
    )


def pack(session: Session, certificate: Certificate) -> Pack:
    """Return everything that offline verification needs: the chain, and its proofs under one tree head."""
    head = tree_head(session)
    earlier = repository.chain_before(session, certificate)
    places = [certificate.log_index, *(link.log_index for link in earlier)]
    own, *paths = log_store.over_log(
        session, lambda node: [merkle.inclusion_proof(place, head.size, node) for place in places]
    )
    return build_pack(
        envelope=envelope.parse(certificate.envelope),
        tree_head=head.tree_head,
        index=certificate.log_index,
        path=own,
        keys=key_set(session),
        predecessors=[
            LoggedEnvelope(envelope.parse(link.envelope), link.log_index, path)
            for link, path in zip(earlier, paths, strict=True)
        ],
    )


def tree_head(session: Session) -> LogHead:
    """Return the newest tree head of the certificate log, or raise `NotFound` while the log is empty."""
    head = log_store.log_head(session)
    if head is None or head.size == 0:  # the row is created before the first leaf
        raise NotFound("The certificate log is empty: no certificate has been issued yet.")
    return head


def prove_inclusion(session: Session, index: int) -> InclusionProof:
    """Prove that the leaf at `index` is in the log, under the newest tree head."""
    return prove_inclusions(session, [index])[index]


def prove_inclusions(session: Session, indices: Sequence[int]) -> dict[int, InclusionProof]:
    """Prove that several leaves are in the log, under one tree head. All nodes are loaded together."""
    head = tree_head(session)
    if not all(0 <= index < head.size for index in indices):
        raise NotFound(f"The certificate log has no leaf at this position. {_size_of(head)}")
    paths = log_store.over_log(
        session, lambda node: [merkle.inclusion_proof(index, head.size, node) for index in indices]
    )
    return {
        index: InclusionProof(
            index=index, size=head.size, path=[step.hex() for step in path], checkpoint=head.tree_head
        )
        for index, path in zip(indices, paths, strict=True)
    }


def prove_consistency(session: Session, old_size: int) -> ConsistencyProof:
    """Prove that the log has only grown since it had `old_size` leaves."""
    head = tree_head(session)
    if not 0 <= old_size <= head.size:
        raise InvalidRequest(f"old_size is larger than the certificate log. {_size_of(head)}")
    path = log_store.over_log(session, lambda node: merkle.consistency_proof(old_size, head.size, node))
    return ConsistencyProof(
        old_size=old_size, new_size=head.size, path=[step.hex() for step in path], checkpoint=head.tree_head
    )


def _size_of(head: LogHead) -> str:
    return f"It has {head.size} {'leaf' if head.size == 1 else 'leaves'}."

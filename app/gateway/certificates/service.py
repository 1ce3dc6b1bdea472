"""Certificates and the log as anyone may read them. The gateway holds no private key: it signs nothing."""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy.orm import Session

from app.certificates import repository
from app.certificates.schemas import ConsistencyProof, InclusionProof
from app.db.tables import Certificate, LogHead
from app.errors import InvalidRequest, NotFound
from certificate import envelope, merkle
from certificate.keys import KeySet, PublicKey
from certificate.pack import LoggedEnvelope, Pack, build_pack


def get(session: Session, certificate_id: UUID, tenant_id: UUID | None) -> Certificate:
    found = repository.by_id(session, certificate_id, tenant_id)
    if found is None:
        raise NotFound("There is no such certificate.")
    return found


def key_set(session: Session) -> KeySet:
    return KeySet(
        keys=tuple(
            PublicKey(
                key_id=record.key_id,
                pem=record.public_pem,
                valid_from=record.valid_from,
                valid_until=record.valid_until,
            )
            for record in repository.signing_keys(session)
        )
    )


def pack(session: Session, certificate: Certificate) -> Pack:
    """Return everything offline verification needs: the chain, and its places under one tree head."""
    top = head(session)
    earlier = repository.chain_before(session, certificate)
    places = [certificate.log_index, *(link.log_index for link in earlier)]
    own, *paths = repository.over_log(
        session, lambda node: [merkle.inclusion_proof(place, top.size, node) for place in places]
    )
    return build_pack(
        envelope=envelope.parse(certificate.envelope),
        tree_head=top.note,
        index=certificate.log_index,
        path=own,
        keys=key_set(session),
        predecessors=[
            LoggedEnvelope(envelope.parse(link.envelope), link.log_index, path)
            for link, path in zip(earlier, paths, strict=True)
        ],
    )


def head(session: Session) -> LogHead:
    found = repository.log_head(session)
    if found is None or found.size == 0:  # its row is made before the first leaf is
        raise NotFound("The log is empty: no certificate was issued yet.")
    return found


def inclusion(session: Session, index: int) -> InclusionProof:
    """Prove under the newest tree head that the leaf at this place is in the log."""
    return inclusions(session, [index])[index]


def inclusions(session: Session, indices: Sequence[int]) -> dict[int, InclusionProof]:
    """Prove the leaves at these places under one tree head; their nodes are read in one query."""
    top = head(session)
    if not all(0 <= index < top.size for index in indices):
        raise NotFound(f"The log has {top.size} leaves.")
    paths = repository.over_log(
        session, lambda node: [merkle.inclusion_proof(index, top.size, node) for index in indices]
    )
    return {
        index: InclusionProof(
            index=index, size=top.size, path=[step.hex() for step in path], checkpoint=top.note
        )
        for index, path in zip(indices, paths, strict=True)
    }


def consistency(session: Session, old_size: int) -> ConsistencyProof:
    top = head(session)
    if not 0 <= old_size <= top.size:
        raise InvalidRequest(f"The log has {top.size} leaves.")
    path = repository.over_log(session, lambda node: merkle.consistency_proof(old_size, top.size, node))
    return ConsistencyProof(
        old_size=old_size, new_size=top.size, path=[step.hex() for step in path], checkpoint=top.note
    )

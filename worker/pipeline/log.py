"""The certificate log in SQL: a leaf, its nodes and the new signed tree head, in the caller's transaction."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.clock import now
from app.db.tables import LogHead, LogNode
from app.db.upsert import insert_if_absent
from certificate import merkle
from certificate.keys import Signer
from certificate.note import Checkpoint, parse_note, sign_checkpoint
from worker.signing import PLACES, announce_key, rotate


def lock(session: Session) -> LogHead:
    """The head row, locked until the transaction ends: leaves are appended one after the other."""
    insert_if_absent(session, LogHead, id=1, size=0, note="", signed_at=now())
    return session.scalars(select(LogHead).where(LogHead.id == 1).with_for_update()).one()


def append(session: Session, digest: str, signer: Signer, origin: str) -> int:
    """Log an envelope by its digest; its place. Reads and writes O(log n) rows."""
    head = lock(session)
    announce_key(session, signer, head.size)
    place = head.size

    def node(level: int, position: int) -> bytes:
        return session.get_one(LogNode, (level, position)).hash

    for level, position, value in merkle.append_nodes(place, merkle.leaf_hash(bytes.fromhex(digest)), node):
        session.add(LogNode(level=level, position=position, hash=value))
    session.flush()
    head.size = place + 1
    head.note = sign_checkpoint(Checkpoint(origin, head.size, merkle.root(head.size, node)), signer)
    head.signed_at = now()
    return place


def hand_over(session: Session, signer: Signer, origin: str, place: str = PLACES) -> None:
    """Let this key take over the log, and sign the current tree head with it, in one transaction.

    Packs are served under the current head: one signed by a retired key would no longer verify.
    """
    rotate(session, signer, lock(session).size, place)
    renew_head(session, signer, origin)


def renew_head(session: Session, signer: Signer, origin: str) -> bool:
    """Sign the current tree head with the key in use, unless it is; return whether it was signed again.

    Versions before this one left the head of a rotation under the old key until the next leaf.
    """
    head = lock(session)
    if head.size == 0 or _signed_by(head, signer):
        return False

    def node(level: int, position: int) -> bytes:
        return session.get_one(LogNode, (level, position)).hash

    announce_key(session, signer, head.size)
    head.note = sign_checkpoint(Checkpoint(origin, head.size, merkle.root(head.size, node)), signer)
    head.signed_at = now()
    return True


def _signed_by(head: LogHead, signer: Signer) -> bool:
    key_hash = bytes.fromhex(signer.key_id)[:4]
    return any(signature.key_hash == key_hash for signature in parse_note(head.note)[1])

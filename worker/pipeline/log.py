"""The certificate log in SQL: a leaf, its nodes and the new signed tree head, in the caller's transaction."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.clock import now
from app.db.tables import LogHead, LogNode
from app.db.upsert import insert_if_absent
from certificate import merkle
from certificate.keys import Signer
from certificate.note import Checkpoint, sign_checkpoint
from worker.signing import announce_key


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

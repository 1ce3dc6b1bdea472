"""The certificate log in SQL: leaves, their nodes and the new signed tree head, in the caller's transaction.

A leaf is the digest of a signed envelope, whatever it holds: a certificate or a "no data held" statement.
"""

from collections.abc import Sequence

from sqlalchemy import insert, select
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
    """Log an envelope by its digest and return its place. Reads and writes O(log n) rows."""
    return append_many(session, [digest], signer, origin)


def append_statements(session: Session, digests: Sequence[str], signer: Signer, origin: str) -> int:
    """Log "no data held" statements, and count them: nothing else tells later that their leaves were ours."""
    place = append_many(session, digests, signer, origin)
    head = lock(session)
    head.statements = (head.statements or 0) + len(digests)
    return place


def append_many(session: Session, digests: Sequence[str], signer: Signer, origin: str) -> int:
    """Log envelopes one after the other under one new tree head, and return the place of the first.

    Reads O(log n) rows, writes two per envelope on average, and signs once.
    """
    head = lock(session)
    announce_key(session, signer, head.size)
    place, added = head.size, dict[tuple[int, int], bytes]()

    def node(level: int, position: int) -> bytes:
        if (level, position) in added:
            return added[level, position]
        return session.get_one(LogNode, (level, position)).hash

    for size, digest in enumerate(digests, place):
        for level, position, value in merkle.append_nodes(
            size, merkle.leaf_hash(bytes.fromhex(digest)), node
        ):
            added[level, position] = value
    session.execute(
        insert(LogNode),
        [{"level": level, "position": position, "hash": value} for (level, position), value in added.items()],
    )
    head.size = place + len(digests)
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

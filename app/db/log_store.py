"""The certificate log in SQL: its leaves, the hashes of its subtrees and its newest signed tree head.

A leaf is the digest of a signed envelope, which holds a certificate, a "no data held" statement or the head
of a tenant's audit log. Functions that append work in the caller's transaction.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from sqlalchemy import insert, select, tuple_
from sqlalchemy.orm import Session

from app.core.clock import now
from app.db.session import insert_if_absent
from app.db.signing_keys import PLACES, announce_key, rotate
from app.db.tables import LogHead, LogNode, SigningKeyRecord
from lethe.certificate import merkle
from lethe.certificate.keys import Signer
from lethe.certificate.tree_head import TreeHead, sign_tree_head, split_signatures

T = TypeVar("T")
NODES_IN_A_QUERY = 400  # two parameters each; SQLite accepts at least a thousand


def log_head(session: Session) -> LogHead | None:
    """Return the newest tree head, or None if nothing was ever appended."""
    return session.get(LogHead, 1)


def signing_keys(session: Session) -> Sequence[SigningKeyRecord]:
    """Return the public halves of all signing keys, oldest first."""
    return session.scalars(select(SigningKeyRecord).order_by(SigningKeyRecord.valid_from)).all()


def over_log(session: Session, computation: Callable[[merkle.NodeReader], T]) -> T:
    """Return the result of a computation on the log's nodes, such as a root or a set of proofs.

    The computation runs twice: once to find out which O(log n) nodes it reads, so that they can be fetched
    with few queries, and once on the fetched nodes. Raises `KeyError` if a node is missing.
    """
    places = sorted(set(merkle.reads_of(computation)))
    nodes: dict[tuple[int, int], bytes] = {}
    for first in range(0, len(places), NODES_IN_A_QUERY):
        rows = session.execute(
            select(LogNode.level, LogNode.position, LogNode.hash).where(
                tuple_(LogNode.level, LogNode.position).in_(places[first : first + NODES_IN_A_QUERY])
            )
        )
        nodes.update({(level, position): value for level, position, value in rows})
    return computation(lambda level, position: nodes[level, position])


def root_at(session: Session, size: int) -> bytes:
    """Return the root hash that the log had when it had `size` leaves."""
    return over_log(session, lambda node: merkle.root(size, node))


def lock(session: Session) -> LogHead:
    """Return the tree head's row, locked until the transaction ends, so that leaves are appended in turn."""
    insert_if_absent(session, LogHead, id=1, size=0, tree_head="", signed_at=now())
    return session.scalars(select(LogHead).where(LogHead.id == 1).with_for_update()).one()


def append(session: Session, digest: str, signer: Signer, origin: str) -> int:
    """Append the digest of an envelope and return its index. Reads and writes O(log n) rows."""
    return append_many(session, [digest], signer, origin)


def append_statements(session: Session, digests: Sequence[str], signer: Signer, origin: str) -> int:
    """Append the digests of statements that are not certificates, and return the index of the first.

    "No data held" statements themselves are not kept, so statements are counted: otherwise nothing would tell
    later that these leaves are legitimate.
    """
    index = append_many(session, digests, signer, origin)
    head = lock(session)
    head.statements = (head.statements or 0) + len(digests)
    return index


def append_many(session: Session, digests: Sequence[str], signer: Signer, origin: str) -> int:
    """Append the digests of several envelopes under one new tree head and return the index of the first.

    Reads O(log n) rows, writes two rows per envelope on average, and signs once.
    """
    head = lock(session)
    announce_key(session, signer, head.size)
    index, added = head.size, dict[tuple[int, int], bytes]()

    def node(level: int, position: int) -> bytes:
        if (level, position) in added:
            return added[level, position]
        return session.get_one(LogNode, (level, position)).hash

    for size, digest in enumerate(digests, index):
        for level, position, value in merkle.append_nodes(
            size, merkle.leaf_hash(bytes.fromhex(digest)), node
        ):
            added[level, position] = value
    session.execute(
        insert(LogNode),
        [{"level": level, "position": position, "hash": value} for (level, position), value in added.items()],
    )
    head.size = index + len(digests)
    _sign(head, merkle.root(head.size, node), signer, origin)
    return index


def hand_over(session: Session, signer: Signer, origin: str, place: str = PLACES) -> None:
    """Let a new key take over the log, and sign the current tree head with it, in one transaction.

    Certificates are served together with the current tree head. A head signed by a retired key would no
    longer verify. `place` says where the key was read from, for error messages.
    """
    rotate(session, signer, lock(session).size, place)
    renew_head(session, signer, origin)


def renew_head(session: Session, signer: Signer, origin: str) -> bool:
    """Sign the current tree head with the key in use, unless it already is. Return whether it was signed.

    Earlier versions left a rotated log's head under the old key until the next leaf was appended.
    """
    head = lock(session)
    if head.size == 0 or _is_signed_by(head, signer):
        return False
    announce_key(session, signer, head.size)
    _sign(head, root_at(session, head.size), signer, origin)
    return True


def _sign(head: LogHead, root: bytes, signer: Signer, origin: str) -> None:
    head.tree_head = sign_tree_head(TreeHead(origin, head.size, root), signer)
    head.signed_at = now()


def _is_signed_by(head: LogHead, signer: Signer) -> bool:
    key_hash = bytes.fromhex(signer.key_id)[:4]
    return any(signature.key_hash == key_hash for signature in split_signatures(head.tree_head)[1])

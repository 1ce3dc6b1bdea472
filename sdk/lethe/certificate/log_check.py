"""Checklist line 7: the whole chain stands in the log, in order, under a head signed by the key in use."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from certificate import merkle
from certificate.envelope import from_base64
from certificate.errors import LogProofInvalid, SignatureInvalid
from certificate.keys import KeySet
from certificate.note import RETIRED, Checkpoint, verify_head
from certificate.pack import AnyPack, EarlierHead, Pack, Predecessor


def check_log(
    pack: AnyPack, envelope_digest: str, keys: KeySet, known: EarlierHead | None, *, format_version: int
) -> str:
    """Check the place of the certificate and its predecessors, and the tree head against one known otherwise.

    `format_version` is that of the statement: a certificate of format 2 comes in a pack of format 2.
    """
    if format_version > 1 and not isinstance(pack, Pack):
        raise LogProofInvalid(
            "the pack is of format 1, its certificate of format 2: the places of the earlier ones are missing"
        )
    signed = verify_head(pack.log.tree_head, keys)
    head = signed.head
    _check_place(envelope_digest, pack.log.index, pack.log.path, head, "the certificate")
    if isinstance(pack, Pack):
        _check_order(pack.predecessors, pack.log.index, head)
    detail = f"place {pack.log.index} of {head.size} in {head.origin}"
    other = None if known is None else _compare(pack, head, known, keys)
    if signed.retired and not (other is not None and other.vouches):
        raise LogProofInvalid(RETIRED)
    return detail if other is None else f"{detail}; {other.relation}"


def _check_place(digest: str, index: int, path: Sequence[str], head: Checkpoint, what: str) -> None:
    leaf = merkle.leaf_hash(bytes.fromhex(digest))
    steps = [bytes.fromhex(step) for step in path]
    if not merkle.verify_inclusion(leaf, index, head.size, steps, head.root):
        raise LogProofInvalid(f"{what} is not at place {index} of the tree of {head.size}")


def _check_order(predecessors: Sequence[Predecessor], index: int, head: Checkpoint) -> None:
    """Certificates of one chain were logged in the chain's order."""
    places = [*(predecessor.index for predecessor in predecessors), index]
    if any(later <= earlier for earlier, later in pairwise(places)):
        raise LogProofInvalid("the certificates of the chain were not logged in the chain's order")
    for number, predecessor in enumerate(predecessors):
        try:
            digest = hashlib.sha256(from_base64(predecessor.envelope)).hexdigest()
        except SignatureInvalid as error:
            raise LogProofInvalid(f"predecessor {number} of the pack cannot be read: {error}") from None
        _check_place(digest, predecessor.index, predecessor.path, head, f"predecessor {number} of the pack")


@dataclass(frozen=True)
class _Known:
    """A tree head that the reader holds. `vouches`: it is no older than the pack's and of a key in use."""

    vouches: bool
    relation: str


def _compare(pack: AnyPack, head: Checkpoint, known: EarlierHead, keys: KeySet) -> _Known:
    """Check that one of the two heads extends the other."""
    signed = verify_head(known.checkpoint, keys)
    other = signed.head
    if other.origin != head.origin:
        raise LogProofInvalid("the earlier tree head is of another log")
    if other.size > head.size:
        _check_extends(head, other, known.path)
        relation = f"is a prefix of the head of {other.size}"
    else:
        proved = next((proof.path for proof in pack.consistency if proof.old_size == other.size), ())
        _check_extends(other, head, known.path or proved)
        relation = f"extends the earlier head of {other.size}"
    return _Known(vouches=other.size >= head.size and not signed.retired, relation=relation)


def _check_extends(older: Checkpoint, newer: Checkpoint, path: Sequence[str]) -> None:
    steps = [bytes.fromhex(step) for step in path]
    if merkle.verify_consistency(older.size, newer.size, steps, older.root, newer.root):
        return
    raise LogProofInvalid(
        f"nothing shows that the tree of {newer.size} leaves extends the one of {older.size}: the log was "
        "truncated or rewritten, or the proof between the two heads is missing"
    )

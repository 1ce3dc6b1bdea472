"""Checklist line 7: the log contains the whole chain, in order, under a tree head signed by a key in use."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from lethe.certificate import merkle
from lethe.certificate.envelope import from_base64
from lethe.certificate.errors import LogProofInvalid, SignatureInvalid
from lethe.certificate.keys import KeySet
from lethe.certificate.pack import AnyPack, EarlierHead, Pack, Predecessor
from lethe.certificate.tree_head import RETIRED_KEY, TreeHead, verify_signatures


def check_log(
    pack: AnyPack, envelope_digest: str, keys: KeySet, known: EarlierHead | None, *, format_version: int
) -> str:
    """Check line 7 and return the detail to show, or raise `LogProofInvalid`.

    The certificate and its predecessors must be at their places in the log. If the verifier holds a tree
    head, `known`, one of the two heads must extend the other. `format_version` is the version of the
    statement: a certificate of format 2 must come in a pack of format 2.
    """
    if format_version > 1 and not isinstance(pack, Pack):
        raise LogProofInvalid(
            "the pack is of format 1 but its certificate of format 2, so the places of the earlier "
            "certificates are missing"
        )
    verified = verify_signatures(pack.log.tree_head, keys)
    head = verified.head
    _check_place(envelope_digest, pack.log.index, pack.log.path, head, "the certificate")
    if isinstance(pack, Pack):
        _check_order(pack.predecessors, pack.log.index, head)
    detail = f"place {pack.log.index} in the log {head.origin} of {_leaves(head.size)}"
    comparison = None if known is None else _compare(pack, head, known, keys)
    if verified.retired and not (comparison is not None and comparison.vouches):
        raise LogProofInvalid(RETIRED_KEY)
    return detail if comparison is None else f"{detail}, which {comparison.relation}"


def _check_place(digest: str, index: int, path: Sequence[str], head: TreeHead, what: str) -> None:
    leaf = merkle.leaf_hash(bytes.fromhex(digest))
    steps = [bytes.fromhex(step) for step in path]
    if not merkle.verify_inclusion(leaf, index, head.size, steps, head.root):
        raise LogProofInvalid(f"{what} is not at place {index} of the tree of {_leaves(head.size)}")


def _check_order(predecessors: Sequence[Predecessor], index: int, head: TreeHead) -> None:
    """Check that the certificates of the chain were logged in the order of the chain."""
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
class _Comparison:
    """How the pack's tree head relates to one that the verifier holds.

    `vouches` is true if the latter is no older and signed by a key in use, so that it confirms the pack's
    head even if a retired key signed that.
    """

    vouches: bool
    relation: str


def _compare(pack: AnyPack, head: TreeHead, known: EarlierHead, keys: KeySet) -> _Comparison:
    """Check that one of the two tree heads extends the other."""
    verified = verify_signatures(known.checkpoint, keys)
    other = verified.head
    if other.origin != head.origin:
        raise LogProofInvalid("the earlier tree head belongs to another log")
    if other.size > head.size:
        _check_extends(head, other, known.path)
        relation = f"is a prefix of your tree head of {_leaves(other.size)}"
    else:
        proved = next((proof.path for proof in pack.consistency if proof.old_size == other.size), ())
        _check_extends(other, head, known.path or proved)
        relation = f"extends your tree head of {_leaves(other.size)}"
    return _Comparison(vouches=other.size >= head.size and not verified.retired, relation=relation)


def _check_extends(older: TreeHead, newer: TreeHead, path: Sequence[str]) -> None:
    steps = [bytes.fromhex(step) for step in path]
    if merkle.verify_consistency(older.size, newer.size, steps, older.root, newer.root):
        return
    raise LogProofInvalid(
        f"nothing shows that the tree of {_leaves(newer.size)} extends the tree of {_leaves(older.size)}. "
        "Either the log was truncated or rewritten, or the proof between the two tree heads is missing"
    )


def _leaves(size: int) -> str:
    return f"{size} leaf" if size == 1 else f"{size} leaves"

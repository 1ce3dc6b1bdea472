"""Commitments that reveal nothing: to the subjects of a deletion set, and to the retained data.

A subject is committed to in two steps, so that every field of a receipt is bound even for a reader who does
not know the identifier:

    commitment = H(domain, salt, subject identifier)
    leaf       = H(domain, salt, request id, commitment)

The root over the leaves is in the certificate. Without the 128-bit salt neither can be tried against a guess.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from certificate.merkle import MemoryTree, leaf_hash
from certificate.records import new_salt

_SUBJECT = b"urn:lethe:commitment:subject:v1"
_REQUEST = b"urn:lethe:commitment:request:v1"
_RETAINED = b"urn:lethe:commitment:retained:v1"


@dataclass(frozen=True)
class SubjectCommitment:
    """One erased subject of one request. Holds the salt, not the identifier."""

    request_id: str
    salt: str
    commitment: str

    def leaf(self) -> bytes:
        """Leaf hash in the deletion set's tree."""
        return leaf_hash(bind_request(salt=self.salt, request_id=self.request_id, commitment=self.commitment))


def commit_subject(*, request_id: str, subject_id: str, salt: str | None = None) -> SubjectCommitment:
    salt = new_salt() if salt is None else salt
    return SubjectCommitment(request_id, salt, subject_digest(salt=salt, subject_id=subject_id))


def subject_digest(*, salt: str, subject_id: str) -> str:
    return _digest(_SUBJECT, bytes.fromhex(salt), subject_id.encode()).hex()


def bind_request(*, salt: str, request_id: str, commitment: str) -> bytes:
    return _digest(_REQUEST, bytes.fromhex(salt), request_id.encode(), bytes.fromhex(commitment))


def tree_of_leaves(leaves: Iterable[bytes]) -> tuple[MemoryTree, dict[bytes, int]]:
    """The tree over a deletion set and each leaf's place in it.

    From the leaf hashes alone, which remain when salts are destroyed. Sorted by hash: the order in which
    requests arrived stays private.
    """
    ordered = sorted(set(leaves))
    return MemoryTree(ordered), {leaf: place for place, leaf in enumerate(ordered)}


def deletion_root(commitments: Sequence[SubjectCommitment]) -> str:
    """What `DeletionSet.root` holds; its `subjects` is the number of distinct commitments."""
    return tree_of_leaves(entry.leaf() for entry in commitments)[0].root().hex()


def commit_retained(*, key: bytes, part_digests: Sequence[str]) -> str:
    """Keyed commitment to the retained data, by the SHA-256 digests of its parts in order.

    Keyed, because a plain digest would let anyone test whether a record they hold was in the data.
    """
    if len(key) < 16:
        raise ValueError("the key of a commitment has at least 128 bits")
    parts = [bytes.fromhex(digest) for digest in part_digests]
    return hmac.new(key, _frame(_RETAINED, *parts), hashlib.sha256).hexdigest()


def _digest(*parts: bytes) -> bytes:
    return hashlib.sha256(_frame(*parts)).digest()


def _frame(*parts: bytes) -> bytes:
    """Parts with their lengths, so that no two lists of parts give the same bytes."""
    return b"".join(len(part).to_bytes(8, "big") + part for part in parts)

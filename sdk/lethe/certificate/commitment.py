"""Commitments to the people of a deletion set and to the retained data. They reveal neither.

Each person is committed to in two steps, so that a verifier can check every field of a receipt without
knowing the identifier:

    commitment = H(domain, salt, subject identifier in Unicode normal form C)
    leaf       = H(domain, salt, request id, commitment)

The certificate contains the Merkle root over the leaves. Without the 128-bit salt, nobody can test a guessed
identifier against a commitment or a leaf.
"""

from __future__ import annotations

import hashlib
import hmac
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from lethe.certificate.merkle import MemoryTree, leaf_hash
from lethe.certificate.records import new_salt

_SUBJECT = b"urn:lethe:commitment:subject:v1"
_REQUEST = b"urn:lethe:commitment:request:v1"
_RETAINED = b"urn:lethe:commitment:retained:v1"

IdentifierRule = Literal["nfc-exact-v1"]
IDENTIFIER_RULE: IdentifierRule = "nfc-exact-v1"
IDENTIFIER_RULE_IN_WORDS = (
    "Identifiers are compared character by character after Unicode normalisation (NFC): one that differs in "
    "case, spacing or spelling counts as another person."
)


@dataclass(frozen=True)
class SubjectCommitment:
    """The commitment to one erased person of one request, with its salt but without the identifier.

    `identifier_rule` is None for old commitments over the identifier exactly as it was sent.
    """

    request_id: str
    salt: str
    commitment: str
    identifier_rule: IdentifierRule | None = IDENTIFIER_RULE

    def leaf(self) -> bytes:
        """Return the leaf hash in the tree of the deletion set."""
        return leaf_hash(bind_request(salt=self.salt, request_id=self.request_id, commitment=self.commitment))


def normalise_identifier(identifier: str) -> str:
    """Return the form in which identifiers are compared and committed to: Unicode normal form C.

    Nothing else changes: case, spaces and invisible characters all count.

    >>> normalise_identifier("Zoe\u0308") == "Zo\u00eb"
    True
    >>> normalise_identifier("Alice ")
    'Alice '
    """
    return unicodedata.normalize("NFC", identifier)


def commit_subject(*, request_id: str, subject_id: str, salt: str | None = None) -> SubjectCommitment:
    """Commit to one person of one request, by the normal form of the identifier."""
    salt = new_salt() if salt is None else salt
    digest = subject_digest(salt=salt, subject_id=normalise_identifier(subject_id))
    return SubjectCommitment(request_id, salt, digest)


def subject_digest(*, salt: str, subject_id: str) -> str:
    """Return the commitment to exactly these characters. `commit_subject` normalises them first."""
    return _digest(_SUBJECT, bytes.fromhex(salt), subject_id.encode()).hex()


def bind_request(*, salt: str, request_id: str, commitment: str) -> bytes:
    """Return the leaf data that binds a commitment to its request."""
    return _digest(_REQUEST, bytes.fromhex(salt), request_id.encode(), bytes.fromhex(commitment))


def build_deletion_tree(leaves: Iterable[bytes]) -> tuple[MemoryTree, dict[bytes, int]]:
    """Return the tree over a deletion set, and the place of each leaf in it.

    It needs only the leaf hashes, which are kept when salts are destroyed. Leaves are sorted by hash, so the
    order in which requests arrived stays private.
    """
    ordered = sorted(set(leaves))
    return MemoryTree(ordered), {leaf: place for place, leaf in enumerate(ordered)}


def deletion_root(commitments: Sequence[SubjectCommitment]) -> str:
    """Return the root of a deletion set, which has one leaf for each pair of request and person."""
    return build_deletion_tree(entry.leaf() for entry in commitments)[0].root().hex()


def commit_retained(*, key: bytes, part_digests: Sequence[str]) -> str:
    """Return a keyed commitment to the retained data, from the SHA-256 digests of its parts in order.

    Without a key, anyone could test whether a record they hold was in the data.
    """
    if len(key) < 16:
        raise ValueError("the key of a commitment must have at least 128 bits")
    parts = [bytes.fromhex(digest) for digest in part_digests]
    return hmac.new(key, _frame(_RETAINED, *parts), hashlib.sha256).hexdigest()


def _digest(*parts: bytes) -> bytes:
    return hashlib.sha256(_frame(*parts)).digest()


def _frame(*parts: bytes) -> bytes:
    """Join parts with their lengths in front, so that no two lists of parts give the same bytes."""
    return b"".join(len(part).to_bytes(8, "big") + part for part in parts)

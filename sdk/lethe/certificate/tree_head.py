"""Signed tree heads: the state of the certificate log at one size, signed by its key.

A tree head is stored and served as text in the C2SP formats https://c2sp.org/signed-note and
https://c2sp.org/tlog-checkpoint, with signature type 0x02 (ECDSA). The key hash is the first four bytes of
the key id, which is the SHA-256 of the DER SubjectPublicKeyInfo. The signature is DER-encoded and covers the
SHA-256 of the text up to and including its final newline.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass

from lethe.certificate.envelope import from_base64, window
from lethe.certificate.errors import LogProofInvalid, SignatureInvalid
from lethe.certificate.keys import KeySet, PublicKey, Signer
from lethe.certificate.records import printable

MAX_LENGTH = 64 * 1024
MAX_SIGNATURES = 16
_DECIMAL = re.compile(r"0|[1-9][0-9]{0,18}")
_DASH = "\u2014"
RETIRED_KEY = (
    "only a retired key signed the tree head, which proves nothing new. Download the pack and the keys "
    "again: the service then sends a tree head signed by the key in use"
)


@dataclass(frozen=True)
class TreeHead:
    """The log's name, its number of leaves and its Merkle root."""

    origin: str
    size: int
    root: bytes

    def text(self) -> str:
        """Return the text that is signed."""
        return f"{self.origin}\n{self.size}\n{base64.b64encode(self.root).decode()}\n"


@dataclass(frozen=True)
class TreeHeadSignature:
    """One signature line: the signer's name, the hash of its key, and the signature."""

    name: str
    key_hash: bytes
    value: bytes


@dataclass(frozen=True)
class VerifiedTreeHead:
    """A tree head with a good signature. `retired` is true if every known key that signed it is retired.

    A head that only retired keys signed proves nothing by itself.
    """

    head: TreeHead
    retired: bool


def sign_tree_head(head: TreeHead, signer: Signer) -> str:
    """Return the signed text of `head`. Raise `ValueError` if its origin cannot be a key name."""
    if not _is_key_name(head.origin):
        raise ValueError("the origin of a log must be a name without spaces or plus signs")
    text = head.text()
    blob = bytes.fromhex(signer.key_id)[:4] + signer.sign(text.encode())
    return f"{text}\n{_DASH} {head.origin} {base64.b64encode(blob).decode()}\n"


def verify_tree_head(signed: str, keys: KeySet) -> TreeHead:
    """Return the tree head in `signed` after checking that a key in use signed it."""
    verified = verify_signatures(signed, keys)
    if verified.retired:
        raise LogProofInvalid(RETIRED_KEY)
    return verified.head


def verify_signatures(signed: str, keys: KeySet) -> VerifiedTreeHead:
    """Return the tree head in `signed` after checking that a known key, valid at its size, signed it.

    Signatures by unknown keys (witnesses) are ignored. One bad signature by a known key invalidates the whole
    text. The caller must handle `retired`: such a head counts only with a proof that a head signed by a key
    in use extends it.
    """
    text, signatures = split_signatures(signed)
    head = _parse_text(text)
    signers: list[PublicKey] = []
    for signature in signatures:
        key = _find_key(signature, head, keys)
        if key is None:
            continue
        # A head is signed by the key of its last leaf, and once more by the key that takes over at its size.
        if not (key.valid_at(head.size - 1) or key.valid_at(head.size)):
            raise LogProofInvalid(
                f"key {key.key_id[:16]} is valid for places {window(key)} of the log, "
                f"not for a tree head of size {head.size}"
            )
        if not key.accepts(text.encode(), signature.value):
            raise LogProofInvalid("the tree head's signature does not match its text")
        signers.append(key)
    if not signers:
        raise LogProofInvalid("the tree head is not signed by a known key of its log")
    return VerifiedTreeHead(head, retired=all(key.valid_until is not None for key in signers))


def parse_tree_head(signed: str) -> TreeHead:
    """Return the tree head in `signed` without verifying its signatures."""
    return _parse_text(split_signatures(signed)[0])


def split_signatures(signed: str) -> tuple[str, tuple[TreeHeadSignature, ...]]:
    """Split a signed tree head at its last empty line into its text and its signatures.

    The text includes its final newline, as the signatures cover it.
    """
    if len(signed) > MAX_LENGTH or any(ord(c) < 0x20 and c != "\n" for c in signed):
        raise LogProofInvalid("the text is not a signed tree head")
    body, separator, tail = signed.rpartition("\n\n")
    if not separator or not body or not tail.endswith("\n"):
        raise LogProofInvalid("the text is not a signed tree head")
    lines = tail[:-1].split("\n")
    if not 1 <= len(lines) <= MAX_SIGNATURES:
        raise LogProofInvalid(f"the tree head must carry between 1 and {MAX_SIGNATURES} signatures")
    return body + "\n", tuple(_parse_signature(line) for line in lines)


def _parse_signature(line: str) -> TreeHeadSignature:
    parts = line.split(" ")
    if len(parts) != 3 or parts[0] != _DASH or not _is_key_name(parts[1]):
        raise LogProofInvalid("a signature line of the tree head is malformed")
    blob = _decode(parts[2])
    if len(blob) < 5:
        raise LogProofInvalid("a signature of the tree head is too short")
    return TreeHeadSignature(parts[1], blob[:4], blob[4:])


def _parse_text(text: str) -> TreeHead:
    """Parse origin, size and root. Extension lines may follow; the signature covers them too."""
    lines = text.split("\n")
    if len(lines) < 4 or not lines[0] or not _DECIMAL.fullmatch(lines[1]):
        raise LogProofInvalid("the tree head does not state an origin, a size and a root")
    root = _decode(lines[2])
    if len(root) != 32:
        raise LogProofInvalid("the tree head's root is not a SHA-256 hash")
    return TreeHead(printable(lines[0]), int(lines[1]), root)


def _find_key(signature: TreeHeadSignature, head: TreeHead, keys: KeySet) -> PublicKey | None:
    if signature.name != head.origin:
        return None
    return next((key for key in keys.keys if bytes.fromhex(key.key_id)[:4] == signature.key_hash), None)


def _decode(text: str) -> bytes:
    try:
        return from_base64(text)
    except SignatureInvalid:
        raise LogProofInvalid("the tree head contains text that is not canonical base64") from None


def _is_key_name(name: str) -> bool:
    return bool(name) and "+" not in name and not any(character.isspace() for character in name)

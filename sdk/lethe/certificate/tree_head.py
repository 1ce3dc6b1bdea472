"""Signed tree heads as C2SP tlog-checkpoint notes.

https://c2sp.org/signed-note and https://c2sp.org/tlog-checkpoint. Signature type 0x02, ECDSA: the key hash is
the first four bytes of the SHA-256 of the DER SubjectPublicKeyInfo (our key id), the signature is DER over
the SHA-256 of the note's text, final newline included.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass

from certificate.envelope import from_base64, window
from certificate.errors import LogProofInvalid, SignatureInvalid
from certificate.keys import KeySet, PublicKey, Signer
from certificate.records import printable

MAX_NOTE = 64 * 1024
MAX_SIGNATURES = 16
_DECIMAL = re.compile(r"0|[1-9][0-9]{0,18}")
_DASH = "\u2014"
RETIRED = (
    "the tree head is signed by a retired key, which proves nothing new. Download the pack and the keys "
    "again: the pack is then served under a tree head signed by the key in use"
)


@dataclass(frozen=True)
class Checkpoint:
    """What a tree head says: which log, how many leaves, which root."""

    origin: str
    size: int
    root: bytes

    def text(self) -> str:
        return f"{self.origin}\n{self.size}\n{base64.b64encode(self.root).decode()}\n"


@dataclass(frozen=True)
class NoteSignature:
    name: str
    key_hash: bytes
    value: bytes


def sign_checkpoint(checkpoint: Checkpoint, signer: Signer) -> str:
    if not _is_key_name(checkpoint.origin):
        raise ValueError("a log's origin is a name without spaces or plus signs")
    text = checkpoint.text()
    blob = bytes.fromhex(signer.key_id)[:4] + signer.sign(text.encode())
    return f"{text}\n{_DASH} {checkpoint.origin} {base64.b64encode(blob).decode()}\n"


@dataclass(frozen=True)
class SignedHead:
    """A tree head and whether every known key that signed it is retired, so that it proves nothing alone."""

    head: Checkpoint
    retired: bool


def verify_checkpoint(note: str, keys: KeySet) -> Checkpoint:
    """Return the tree head a note carries, once a known key that is not retired has signed it."""
    signed = verify_head(note, keys)
    if signed.retired:
        raise LogProofInvalid(RETIRED)
    return signed.head


def verify_head(note: str, keys: KeySet) -> SignedHead:
    """Return the tree head a note carries, once a known key valid at its size has signed it.

    Signatures of unknown keys (witnesses) are ignored; a bad one by a known key spoils the note. The caller
    decides what a retired key's signature is worth: nothing, unless a proof leads to a head of a key in use.
    """
    text, signatures = parse_note(note)
    checkpoint = parse_checkpoint(text)
    signers: list[PublicKey] = []
    for signature in signatures:
        key = _known_key(signature, checkpoint, keys)
        if key is None:
            continue
        # A head is signed with its last leaf, or again by the key that takes over at its size.
        if not (key.valid_at(checkpoint.size - 1) or key.valid_at(checkpoint.size)):
            raise LogProofInvalid(
                f"key {key.key_id[:16]} is valid for places {window(key)} of the log, "
                f"not for a head of size {checkpoint.size}"
            )
        if not key.accepts(text.encode(), signature.value):
            raise LogProofInvalid("the tree head's signature does not match its text")
        signers.append(key)
    if not signers:
        raise LogProofInvalid("the tree head is not signed by a known key of its log")
    return SignedHead(checkpoint, retired=all(key.valid_until is not None for key in signers))


def _known_key(signature: NoteSignature, checkpoint: Checkpoint, keys: KeySet) -> PublicKey | None:
    if signature.name != checkpoint.origin:
        return None
    return next((key for key in keys.keys if bytes.fromhex(key.key_id)[:4] == signature.key_hash), None)


def parse_note(note: str) -> tuple[str, tuple[NoteSignature, ...]]:
    """Text (final newline included) and signatures; they are separated by the last empty line."""
    if len(note) > MAX_NOTE or any(ord(c) < 0x20 and c != "\n" for c in note):
        raise LogProofInvalid("the tree head is not a signed note")
    body, separator, tail = note.rpartition("\n\n")
    if not separator or not body or not tail.endswith("\n"):
        raise LogProofInvalid("the tree head is not a signed note")
    lines = tail[:-1].split("\n")
    if not 1 <= len(lines) <= MAX_SIGNATURES:
        raise LogProofInvalid("the tree head carries no usable number of signatures")
    return body + "\n", tuple(_signature_line(line) for line in lines)


def _signature_line(line: str) -> NoteSignature:
    parts = line.split(" ")
    if len(parts) != 3 or parts[0] != _DASH or not _is_key_name(parts[1]):
        raise LogProofInvalid("the tree head carries a malformed signature line")
    blob = _decode(parts[2])
    if len(blob) < 5:
        raise LogProofInvalid("the tree head carries a signature that is too short")
    return NoteSignature(parts[1], blob[:4], blob[4:])


def parse_checkpoint(text: str) -> Checkpoint:
    """Origin, size and root; extension lines may follow and are covered by the signature."""
    lines = text.split("\n")
    if len(lines) < 4 or not lines[0] or not _DECIMAL.fullmatch(lines[1]):
        raise LogProofInvalid("the tree head is not a checkpoint")
    root = _decode(lines[2])
    if len(root) != 32:
        raise LogProofInvalid("the tree head's root is not a SHA-256 hash")
    return Checkpoint(printable(lines[0]), int(lines[1]), root)


def _decode(text: str) -> bytes:
    try:
        return from_base64(text)
    except SignatureInvalid:
        raise LogProofInvalid("the tree head holds text that is not canonical base64") from None


def _is_key_name(name: str) -> bool:
    return bool(name) and "+" not in name and not any(character.isspace() for character in name)

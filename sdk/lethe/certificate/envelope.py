"""DSSE envelopes: signing and verifying exact bytes, which are never serialised again.

Protocol: https://github.com/secure-systems-lab/dsse/blob/master/protocol.md
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import dataclass
from typing import Any

from lethe.certificate.errors import SignatureInvalid, SignatureMismatch, UnknownSigner, UnusableInput
from lethe.certificate.keys import KeySet, PublicKey, Signer
from lethe.certificate.records import canonical_json, printable, read_object

IN_TOTO_PAYLOAD = "application/vnd.in-toto+json"
BUNDLE_MEDIA_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
MAX_SIGNATURES = 16


@dataclass(frozen=True)
class Signature:
    """One signature of an envelope and the id of the key that made it."""

    key_id: str
    value: bytes


@dataclass(frozen=True)
class Envelope:
    """A parsed envelope and `raw`, the exact bytes it was parsed from, whose digest is in the log."""

    raw: bytes
    payload: bytes
    payload_type: str
    signatures: tuple[Signature, ...]

    @property
    def digest(self) -> str:
        """SHA-256 of the exact bytes, in hexadecimal."""
        return hashlib.sha256(self.raw).hexdigest()


def pae(payload_type: str, payload: bytes) -> bytes:
    """Return DSSE's pre-authentication encoding (PAE) of a payload: the bytes that are signed."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def sign(payload: bytes, signer: Signer, payload_type: str = IN_TOTO_PAYLOAD) -> Envelope:
    """Sign `payload` and return the envelope around it."""
    signature = signer.sign(pae(payload_type, payload))
    raw = canonical_json(
        {
            "payload": base64.b64encode(payload).decode(),
            "payloadType": payload_type,
            "signatures": [{"keyid": signer.key_id, "sig": base64.b64encode(signature).decode()}],
        }
    )
    return parse(raw)


def parse(raw: bytes) -> Envelope:
    """Parse an envelope without verifying it. Raise `SignatureInvalid` if it is malformed."""
    try:
        document = read_object(raw, "envelope")
    except UnusableInput as error:
        raise SignatureInvalid(str(error)) from None
    match document:
        case {"payload": str() as payload, "payloadType": str() as kind, "signatures": list() as signatures}:
            if len(document) != 3 or not 1 <= len(signatures) <= MAX_SIGNATURES:
                raise SignatureInvalid(
                    f"the envelope has unknown fields, or not between 1 and {MAX_SIGNATURES} signatures"
                )
            return Envelope(raw, from_base64(payload), kind, tuple(_signature(entry) for entry in signatures))
    raise SignatureInvalid("the envelope is not a DSSE envelope")


def _signature(entry: Any) -> Signature:
    match entry:
        case {"keyid": str() as key_id, "sig": str() as value} if len(entry) == 2:
            return Signature(key_id, from_base64(value))
    raise SignatureInvalid("a signature of the envelope is malformed")


def from_base64(text: str) -> bytes:
    """Decode base64. Accept only the canonical spelling, so that no two texts decode to the same bytes."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise SignatureInvalid("the envelope contains text that is not base64") from None
    if base64.b64encode(data).decode() != text:
        raise SignatureInvalid("the envelope contains base64 that is not canonical")
    return data


def check_signature(
    envelope: Envelope, keys: KeySet, *, position: int | None, payload_type: str = IN_TOTO_PAYLOAD
) -> PublicKey:
    """Check every signature of an envelope and return the key of the first.

    `position` is the envelope's place in the log, at which the key must be valid. None skips that check. One
    bad signature is enough to refuse the envelope, because it shows tampering.
    """
    if envelope.payload_type != payload_type:
        raise SignatureInvalid(
            f"the payload type is {printable(envelope.payload_type)!r}, not {payload_type!r}"
        )
    message = pae(envelope.payload_type, envelope.payload)
    signed_by = [_check_one(signature, message, keys, position) for signature in envelope.signatures]
    return signed_by[0]


def _check_one(signature: Signature, message: bytes, keys: KeySet, position: int | None) -> PublicKey:
    key = keys.find(signature.key_id)
    if key is None:
        raise UnknownSigner(f"signed by an unknown key, {printable(signature.key_id)!r}")
    if position is not None and not key.valid_at(position):
        raise SignatureInvalid(
            f"key {key.key_id[:16]} is valid for places {window(key)} of the log, not for {position}"
        )
    if not key.accepts(message, signature.value):
        raise SignatureMismatch(
            f"the signature does not match: key {key.key_id[:16]} did not sign these bytes"
        )
    return key


def window(key: PublicKey) -> str:
    """Return the places a key may sign as an interval: `[0, 12)`, or `[12, …)` while it is in use."""
    return f"[{key.valid_from}, {'…' if key.valid_until is None else key.valid_until})"


def to_bundle(envelope: Envelope, *, hint: str | None = None) -> dict[str, Any]:
    """Return the envelope as a Sigstore bundle v0.3, verified with the public key that `hint` names."""
    document = read_object(envelope.raw, "envelope")
    return {
        "mediaType": BUNDLE_MEDIA_TYPE,
        "verificationMaterial": {
            "publicKey": {"hint": hint or envelope.signatures[0].key_id},
            "tlogEntries": [],
        },
        "dsseEnvelope": document,
    }

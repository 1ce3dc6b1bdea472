"""ECDSA P-256 keys, each valid for a range of places in the certificate log.

The range is in places rather than dates, because an inclusion proof proves a place, while a date is only what
the signer wrote.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Annotated, Literal, Protocol, Self

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import model_validator

from lethe.certificate.records import Count, Record, Sha256, at_most

ALGORITHM = "ecdsa-p256-sha256"


class Signer(Protocol):
    """Anything that can sign. Implement it over a key service to keep the private key elsewhere."""

    @property
    def key_id(self) -> str:
        """SHA-256 of the DER SubjectPublicKeyInfo, in hexadecimal."""
        ...

    @property
    def public_pem(self) -> str:
        """The public key as PEM text."""
        ...

    def sign(self, message: bytes) -> bytes:
        """Return the DER-encoded ECDSA P-256 signature over the SHA-256 of `message`."""
        ...


class SigningKey:
    """A private key held in memory."""

    def __init__(self, private: ec.EllipticCurvePrivateKey) -> None:
        if not isinstance(private.curve, ec.SECP256R1):
            raise ValueError(f"the key is on {private.curve.name}, but certificates need P-256")  # noqa: TRY004
        self._private = private
        self._public_pem = _pem_of(private.public_key())
        self._key_id = key_id_of(private.public_key())

    @classmethod
    def generate(cls) -> Self:
        """Generate a new key."""
        return cls(ec.generate_private_key(ec.SECP256R1()))

    @classmethod
    def from_pem(cls, pem: str, password: bytes | None = None) -> Self:
        """Load a private key from PEM text. Raise `ValueError` unless it is on P-256."""
        private = serialization.load_pem_private_key(pem.encode(), password)
        if not isinstance(private, ec.EllipticCurvePrivateKey):
            raise ValueError("the key is not an elliptic-curve key")  # noqa: TRY004 - a bad value, not a bad call
        return cls(private)

    def to_pem(self) -> str:
        """Return the private key as unencrypted PEM text. A file that you write it to needs mode 0600."""
        return self._private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode()

    @property
    def key_id(self) -> str:
        """SHA-256 of the DER SubjectPublicKeyInfo, in hexadecimal."""
        return self._key_id

    @property
    def public_pem(self) -> str:
        """The public key as PEM text."""
        return self._public_pem

    def sign(self, message: bytes) -> bytes:
        """Return the DER-encoded ECDSA P-256 signature over the SHA-256 of `message`."""
        return self._private.sign(message, ec.ECDSA(hashes.SHA256()))

    def __repr__(self) -> str:
        return f"SigningKey({self._key_id[:16]}…)"


class PublicKey(Record):
    """A public key and the places in the log that it may sign: from `valid_from` to before `valid_until`.

    `valid_until` is null while the key is in use.
    """

    key_id: Sha256
    algorithm: Literal["ecdsa-p256-sha256"] = "ecdsa-p256-sha256"
    pem: str
    valid_from: Count = 0
    valid_until: Count | None = None

    @model_validator(mode="after")
    def _key_id_is_of_this_key(self) -> Self:
        public = _load_public(self.pem)
        if _pem_of(public) != self.pem:
            raise ValueError("the PEM text is not in canonical form")
        if key_id_of(public) != self.key_id:
            raise ValueError("the key_id is not the digest of this key")
        return self

    @classmethod
    def of(cls, signer: Signer, *, valid_from: int = 0, valid_until: int | None = None) -> Self:
        """Return the public key of `signer`, valid for these places."""
        return cls(
            key_id=signer.key_id, pem=signer.public_pem, valid_from=valid_from, valid_until=valid_until
        )

    @classmethod
    def from_pem(cls, pem: str, *, valid_from: int = 0, valid_until: int | None = None) -> Self:
        """Load a public key from PEM text, valid for these places."""
        public = _load_public(pem)
        return cls(
            key_id=key_id_of(public), pem=_pem_of(public), valid_from=valid_from, valid_until=valid_until
        )

    def valid_at(self, position: int) -> bool:
        """Return whether the key may sign the leaf at `position`."""
        return self.valid_from <= position and (self.valid_until is None or position < self.valid_until)

    def accepts(self, message: bytes, signature: bytes) -> bool:
        """Return whether `signature` is this key's signature over `message`."""
        try:
            _load_public(self.pem).verify(signature, message, ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            return False
        return True


class KeySet(Record):
    """Every key an issuer has ever signed with. This is the body of `GET /v1/keys`."""

    keys: Annotated[tuple[PublicKey, ...], at_most(1000)]

    @model_validator(mode="after")
    def _one_entry_per_key(self) -> Self:
        if len({key.key_id for key in self.keys}) != len(self.keys):
            raise ValueError("the same key occurs twice")
        return self

    def find(self, key_id: str) -> PublicKey | None:
        """Return the key with this id, or None."""
        return next((key for key in self.keys if key.key_id == key_id), None)


def key_id_of(public: ec.EllipticCurvePublicKey) -> str:
    """Return the id of a public key: the SHA-256 of its DER SubjectPublicKeyInfo, in hexadecimal."""
    der = public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).hexdigest()


def _pem_of(public: ec.EllipticCurvePublicKey) -> str:
    return public.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    ).decode()


@lru_cache(maxsize=256)
def _load_public(pem: str) -> ec.EllipticCurvePublicKey:
    try:
        public = serialization.load_pem_public_key(pem.encode())
    except (ValueError, UnsupportedAlgorithm):
        raise ValueError("the PEM text is not a public key") from None
    if not isinstance(public, ec.EllipticCurvePublicKey) or not isinstance(public.curve, ec.SECP256R1):
        raise ValueError("the key is not on P-256")  # noqa: TRY004
    return public

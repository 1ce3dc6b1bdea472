"""Subject identifiers at rest: encrypted under the deployment key, bound to the row that holds them.

So are the salts of their commitments, and the statements that hold a salt: with a salt, whoever reads the
database could try every identifier they can think of.
"""

import hashlib
import hmac
import os
from pathlib import Path
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

NONCE_BYTES = 12
SALT_BYTES = 16  # of a salt that is not encrypted: how they were stored before
PLAIN_STATEMENT = b'{"payload":"'  # how a statement that is not encrypted begins: as long as a nonce


class KeyProblem(Exception):
    """A key is missing or the wrong one; the message is one line that an operator can act on."""


class Vault:
    """What the deployment key does: encrypt texts bound to a row, and hash texts that must be compared."""

    def __init__(self, key: bytes) -> None:
        if len(key) != 32:
            raise ValueError("the deployment key must have 256 bits")
        self._cipher = AESGCM(_derive(key, b"subject encryption"))
        self._mac_key = _derive(key, b"keyed hash")

    def encrypt(self, subject: str, *, row: str) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, subject.encode(), row.encode())

    def decrypt(self, sealed: bytes, *, row: str) -> str:
        try:
            return self._cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], row.encode()).decode()
        except InvalidTag:
            raise ValueError("a stored identifier does not open under this deployment key") from None

    def seal_salt(self, salt: str, *, task_id: UUID, ordinal: int) -> bytes:
        """Encrypt the salt (hexadecimal) of one subject's commitment."""
        return self.encrypt(salt, row=_part_of("salt", task_id, ordinal))

    def open_salt(self, stored: bytes, *, task_id: UUID, ordinal: int) -> str:
        """Return the salt in hexadecimal; one that is stored as it is, from before, is read as well."""
        if len(stored) == SALT_BYTES:
            return stored.hex()
        return self.decrypt(stored, row=_part_of("salt", task_id, ordinal))

    def seal_statement(self, envelope: bytes, *, task_id: UUID, ordinal: int) -> bytes:
        """Encrypt the signed "no data held" statement of one subject."""
        return self.encrypt(envelope.decode(), row=_part_of("statement", task_id, ordinal))

    def open_statement(self, stored: bytes, *, task_id: UUID, ordinal: int) -> bytes:
        """Return the signed statement; one that is stored as it is, from before, is read as well."""
        if is_plain_statement(stored):
            return stored
        return self.decrypt(stored, row=_part_of("statement", task_id, ordinal)).encode()

    def person(self, tenant_id: UUID, identifier: str) -> bytes:
        """Return what equal identifiers of one tenant have in common, to count people without decrypting.

        It is cut to 128 bits: among a billion people, two share one with a probability below 10⁻²⁰.
        """
        return self.keyed_hash(f"{tenant_id}/{identifier}", purpose="distinct people")[:16]

    def keyed_hash(self, text: str, *, purpose: str) -> bytes:
        """Return a hash that can be neither computed nor tested without the deployment key."""
        return hmac.digest(self._mac_key, purpose.encode() + b"\0" + text.encode(), hashlib.sha256)


def row_of(erasure_id: UUID, ordinal: int) -> str:
    """What a ciphertext is bound to: it opens as this subject of this request only."""
    return f"{erasure_id}/{ordinal}"


def is_plain_statement(stored: bytes) -> bool:
    """Whether this is a statement from before they were encrypted: canonical JSON of a DSSE envelope.

    A ciphertext begins with a random nonce, which is this text with a probability of 2⁻⁹⁶.
    """
    return stored.startswith(PLAIN_STATEMENT)


def _part_of(kind: str, task_id: UUID, ordinal: int) -> str:
    return f"{kind}/{task_id}/{ordinal}"


def _derive(key: bytes, purpose: bytes) -> bytes:
    return hmac.digest(key, b"lethe:" + purpose, hashlib.sha256)


def create(path: Path) -> None:
    """File mode 0600, never overwritten."""
    write_private(path, os.urandom(32).hex().encode() + b"\n")


def load(path: Path) -> Vault:
    text = read_key(path, "deployment key")
    try:
        return Vault(bytes.fromhex(text.strip()))
    except ValueError:
        raise KeyProblem(f"the deployment key {path} is not 64 hex digits") from None


def read_key(path: Path, name: str) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        raise KeyProblem(
            f"there is no {name} at {path}; put it there, or let a new installation make one "
            "with LETHE_CREATE_KEYS=true"
        ) from None
    except (OSError, UnicodeDecodeError) as problem:
        raise KeyProblem(f"the {name} {path} cannot be read ({type(problem).__name__})") from None


def write_private(path: Path, content: bytes) -> None:
    """Write a new secret file so that it is never readable by others and never half there."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_suffix(f".{os.getpid()}.new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(draft, path)  # fails when another process was first: then its key is the key
    except FileExistsError:
        pass
    finally:
        draft.unlink()

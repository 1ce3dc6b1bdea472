"""Subject identifiers at rest: encrypted under the deployment key, bound to the row that holds them."""

import hashlib
import hmac
import os
from pathlib import Path
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

NONCE_BYTES = 12


class KeyProblem(Exception):
    """A key is missing or the wrong one; the message is one line that an operator can act on."""


class Vault:
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

    def keyed_hash(self, text: str, *, purpose: str) -> bytes:
        return hmac.digest(self._mac_key, purpose.encode() + b"\0" + text.encode(), hashlib.sha256)


def row_of(erasure_id: UUID, ordinal: int) -> str:
    """What a ciphertext is bound to: it opens as this subject of this request only."""
    return f"{erasure_id}/{ordinal}"


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

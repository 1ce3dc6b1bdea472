"""Encryption at rest: the deployment key, ciphers bound to rows, and the files that hold keys.

Identifiers are encrypted and bound to the row that holds them. So are the salts of their commitments and the
statements that contain a salt: anyone who reads the database and knows a salt could test guessed identifiers.
The keys of all these are in `app.core.data_key`. The deployment key protects those keys.
"""

import hashlib
import hmac
import os
from pathlib import Path
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES = 32
NONCE_BYTES = 12
HASHING = b"keyed hash"
_ENCRYPTION, _HASH_KEY_ROW = b"subject encryption", "hash key"
SALT_BYTES = 16  # the length of a plain salt, as an earlier version stored it
PLAIN_STATEMENT = b'{"payload":"'  # the first bytes of a plain statement, as many as a nonce has


class KeyProblem(Exception):
    """A key is missing or wrong. The message is one line that tells the operator what to do."""


class RowCipher:
    """Encrypts texts with AES-256-GCM, each bound to the row that holds it."""

    def __init__(self, key: bytes, older: "RowCipher | None" = None) -> None:
        """Use a key of 256 bits. `older` opens what was encrypted before this key was used for its row."""
        self._cipher, self._older = AESGCM(key), older

    def encrypt(self, subject: str, *, row: str) -> bytes:
        """Encrypt a text, so that it can be decrypted for this row only."""
        return self.encrypt_bytes(subject.encode(), row=row)

    def decrypt(self, sealed: bytes, *, row: str) -> str:
        """Decrypt a text. Raise `ValueError` if it was encrypted for another row or under another key."""
        return self.decrypt_bytes(sealed, row=row).decode()

    def encrypt_bytes(self, content: bytes, *, row: str) -> bytes:
        """Encrypt bytes, so that they can be decrypted for this row only."""
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, content, row.encode())

    def decrypt_bytes(self, sealed: bytes, *, row: str) -> bytes:
        """Decrypt bytes. Raise `ValueError` if they were encrypted for another row or under another key."""
        try:
            return self._cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], row.encode())
        except InvalidTag:
            if self._older is not None:
                return self._older.decrypt_bytes(sealed, row=row)
            raise ValueError("a stored value cannot be decrypted with this deployment key") from None

    def seal_salt(self, salt: str, *, task_id: UUID, ordinal: int) -> bytes:
        """Encrypt the salt (hexadecimal) of one subject's commitment."""
        return self.encrypt(salt, row=_part_of("salt", task_id, ordinal))

    def open_salt(self, stored: bytes, *, task_id: UUID, ordinal: int) -> str:
        """Return the salt in hexadecimal. Salts that an earlier version stored in plain are accepted."""
        if len(stored) == SALT_BYTES:
            return stored.hex()
        return self.decrypt(stored, row=_part_of("salt", task_id, ordinal))

    def seal_statement(self, envelope: bytes, *, task_id: UUID, ordinal: int) -> bytes:
        """Encrypt the signed "no data held" statement of one subject."""
        return self.encrypt(envelope.decode(), row=_part_of("statement", task_id, ordinal))

    def open_statement(self, stored: bytes, *, task_id: UUID, ordinal: int) -> bytes:
        """Return the signed statement. Statements that an earlier version stored in plain are accepted."""
        if is_plain_statement(stored):
            return stored
        return self.decrypt(stored, row=_part_of("statement", task_id, ordinal)).encode()


class Vault(RowCipher):
    """The deployment key: encrypts other keys and secrets, and hashes texts to compare them."""

    def __init__(self, key: bytes, *, hash_key: bytes | None = None, previous: bytes | None = None) -> None:
        """Use a key of 256 bits.

        Hashes cannot be computed again when the deployment key is rotated, so they keep their `hash_key`.
        Without one, it is derived from the deployment key. `previous` is the deployment key that this one
        replaces: what is encrypted under it can still be decrypted.
        """
        if len(key) != KEY_BYTES:
            raise ValueError("the deployment key must have 256 bits")
        older = None if previous is None else RowCipher(derive(previous, _ENCRYPTION))
        super().__init__(derive(key, _ENCRYPTION), older)
        self._own = RowCipher(derive(key, _ENCRYPTION))
        self._own_hash_key = derive(key, HASHING)
        self._hash_key = hash_key or self._own_hash_key

    def person(self, tenant_id: UUID, identifier: str) -> bytes:
        """Return a keyed hash that is equal for equal identifiers of a tenant, to count people.

        It has 128 bits: among a billion people, two share one with a probability below 10⁻²⁰. It is never
        stored: what is stored is a hash of it under a data key (`DataKey.hash_person`).
        """
        return self.keyed_hash(f"{tenant_id}/{identifier}", purpose="distinct people")[:16]

    def keyed_hash(self, text: str, *, purpose: str) -> bytes:
        """Return a hash that nobody can compute or test without the deployment key."""
        return hmac.digest(self._hash_key, purpose.encode() + b"\0" + text.encode(), hashlib.sha256)

    def check_value(self, purpose: str) -> bytes:
        """Return a value that tells this deployment key from others, whatever hash key is in use."""
        return hmac.digest(self._own_hash_key, purpose.encode() + b"\0", hashlib.sha256)

    def seal_hash_key(self) -> bytes:
        """Encrypt the hash key in use, for storage."""
        return self.encrypt_bytes(self._hash_key, row=_HASH_KEY_ROW)

    def open_hash_key(self, sealed: bytes) -> bytes:
        """Decrypt a stored hash key."""
        return self.decrypt_bytes(sealed, row=_HASH_KEY_ROW)

    def renew(self, sealed: bytes, *, row: str) -> bytes | None:
        """Encrypt something again if only the previous key opens it. Return None if this key opens it.

        Raise `ValueError` if neither does.
        """
        try:
            self._own.decrypt_bytes(sealed, row=row)
        except ValueError:
            return self.encrypt_bytes(self.decrypt_bytes(sealed, row=row), row=row)
        return None


def row_of(erasure_id: UUID, ordinal: int) -> str:
    """Return the row that an identifier is bound to: one subject of one request."""
    return f"{erasure_id}/{ordinal}"


def is_plain_statement(stored: bytes) -> bool:
    """Return whether this is a plain statement of an earlier version: canonical JSON of a DSSE envelope.

    A ciphertext begins with a random nonce, which equals this text with a probability of 2⁻⁹⁶.
    """
    return stored.startswith(PLAIN_STATEMENT)


def _part_of(kind: str, task_id: UUID, ordinal: int) -> str:
    return f"{kind}/{task_id}/{ordinal}"


def derive(key: bytes, purpose: bytes) -> bytes:
    """Derive a key for one purpose from a key of 256 bits."""
    return hmac.digest(key, b"lethe:" + purpose, hashlib.sha256)


def create(path: Path) -> None:
    """Create a deployment key in a file with mode 0600. An existing file is not overwritten."""
    write_private(path, os.urandom(32).hex().encode() + b"\n")


def load(path: Path) -> bytes:
    """Read a deployment key. Raise `KeyProblem` if it is missing, unreadable or malformed."""
    text = read_key(path, "deployment key")
    try:
        key = bytes.fromhex(text.strip())
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise KeyProblem(f"the deployment key {path} is malformed: it must be 64 hexadecimal digits")
    return key


def read_key(path: Path, name: str) -> str:
    """Return the content of a key's file. Raise `KeyProblem` if it cannot be read."""
    try:
        return path.read_text()
    except FileNotFoundError:
        raise KeyProblem(
            f"there is no {name} at {path}; put it there, or set LETHE_CREATE_KEYS=true to let a new "
            "installation create one"
        ) from None
    except (OSError, UnicodeDecodeError) as problem:
        raise KeyProblem(f"the {name} {path} cannot be read ({type(problem).__name__})") from None


def write_private(path: Path, content: bytes) -> None:
    """Create a secret file atomically, readable by its owner only. An existing file is kept."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_suffix(f".{os.getpid()}.new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(draft, path)  # fails if another process was faster: then its key is used
    except FileExistsError:
        pass
    finally:
        draft.unlink()

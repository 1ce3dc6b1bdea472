"""Data keys: random keys that live in files outside SQL, so that destroying a file destroys what it protects.

Deleted rows stay readable in places that nobody controls: freed pages of PostgreSQL, its write-ahead log,
archives and replicas. So nothing about a person is encrypted or hashed under a key that lives on. Each task
has a random task key for its identifiers and another for its receipts. SQL holds these only encrypted under a
data key, and a data key is destroyed when what it protects has to disappear (`app.db.data_keys`).
"""

import hashlib
import hmac
import os
from uuid import UUID

from app.core.vault import KEY_BYTES, RowCipher, Vault, derive

PERSON_BYTES = 16


class DataKey:
    """A data key: it encrypts task keys and computes hashes that are meaningless once it is destroyed."""

    def __init__(self, key_id: UUID, secret: bytes) -> None:
        """Use a secret of 256 bits."""
        if len(secret) != KEY_BYTES:
            raise ValueError("a data key must have 256 bits")
        self.id = key_id
        self._cipher = RowCipher(derive(secret, b"task keys"))
        self._mac_key = derive(secret, b"keyed hash")

    def wrap(self, task_key: bytes, *, row: str) -> bytes:
        """Encrypt a task key for one row (`subject_key_row`, `receipt_key_row`)."""
        return self._cipher.encrypt_bytes(task_key, row=row)

    def unwrap(self, wrapped: bytes, *, row: str) -> bytes:
        """Decrypt a task key. Raise `ValueError` if it belongs to another row or another data key."""
        return self._cipher.decrypt_bytes(wrapped, row=row)

    def hash_person(self, person: bytes) -> bytes:
        """Hash a hash of an identifier (`Vault.person`). It is equal for equal people under one data key."""
        return hmac.digest(self._mac_key, b"person" + person, hashlib.sha256)[:PERSON_BYTES]

    def hash_fingerprint(self, fingerprint: bytes) -> bytes:
        """Hash the fingerprint of a request that was sent with an idempotency key."""
        return hmac.digest(self._mac_key, b"fingerprint" + fingerprint, hashlib.sha256)


def new_task_key() -> bytes:
    """Return a random key for the identifiers or the receipts of a task."""
    return os.urandom(KEY_BYTES)


def subject_key_row(task_id: UUID) -> str:
    """Return the row that the key of a task's identifiers is bound to."""
    return f"subject key/{task_id.hex}"


def receipt_key_row(task_id: UUID) -> str:
    """Return the row that the key of a task's receipts is bound to."""
    return f"receipt key/{task_id.hex}"


def new_secret() -> bytes:
    """Return the secret of a new data key."""
    return os.urandom(KEY_BYTES)


def seal_file(vault: Vault, key_id: UUID, secret: bytes) -> bytes:
    """Return the content of a data key's file: its secret, encrypted under the deployment key."""
    return vault.encrypt_bytes(secret, row=file_row(key_id))


def open_file(vault: Vault, key_id: UUID, content: bytes) -> bytes:
    """Return the secret in a data key's file. Raise `ValueError` if the file is damaged or of another key."""
    return vault.decrypt_bytes(content, row=file_row(key_id))


def file_row(key_id: UUID) -> str:
    """Return what the content of a data key's file is bound to."""
    return f"data key/{key_id}"

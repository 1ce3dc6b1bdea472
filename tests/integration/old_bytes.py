"""An attacker who reads every file of the database, and holds the deployment key and all data keys."""

import re
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from sqlalchemy import text

from app.core import data_key
from app.core.data_key import DataKey, receipt_key_row, subject_key_row
from app.core.vault import RowCipher, Vault, row_of
from app.db import paths
from app.services import Services

WRAPPED_BYTES = 60  # nonce, key and tag
REACH = 400  # how far from the id of its task a value may be within a row
LONGEST = 40  # of a guessed identifier


def position(services: Services) -> str:
    """Return the name of the segment of the write-ahead log that is written now. Empty for SQLite."""
    if services.database.is_sqlite:
        return ""
    with services.database.reading() as session:
        return str(session.scalar(text("SELECT pg_walfile_name(pg_current_wal_lsn())")))


def files_of(services: Services, since: str) -> bytes:
    """Return the bytes of the database's files, with its write-ahead log since a segment."""
    if services.database.is_sqlite:
        file = Path(services.settings.database.removeprefix("sqlite:///"))
        parts = sorted(file.parent.glob(file.name + "*"))
    else:
        with services.database.autocommit() as connection:
            connection.execute(text("CHECKPOINT"))
            folder = Path(str(connection.scalar(text("SHOW data_directory"))))
            own = connection.scalar(text("SELECT oid FROM pg_database WHERE datname = current_database()"))
        log = [file for file in (folder / "pg_wal").iterdir() if file.is_file() and file.name >= since]
        parts = [*sorted((folder / "base" / str(own)).iterdir()), *sorted(log)]
    # Another process reads them: in this one, closing a file of SQLite would drop the locks on it.
    return subprocess.run(["cat", *map(str, parts)], capture_output=True, check=True).stdout


@dataclass
class Attacker:
    """Someone with old bytes of the database, the deployment key and the files of data keys that remain."""

    content: bytes
    vault: Vault
    data_keys: list[DataKey]
    tenant_id: UUID
    guesses: list[str]
    _found: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, services: Services, content: bytes, tenant_id: UUID, guesses: Iterable[str]) -> "Attacker":
        """Collect the keys that are still there."""
        keys = []
        for path in services.storage.list(paths.DATA_KEYS):
            key_id = UUID(path.rpartition("/")[2])
            secret = data_key.open_file(services.vault, key_id, b"".join(services.storage.read(path)))
            keys.append(DataKey(key_id, secret))
        return cls(content, services.vault, keys, tenant_id, list(guesses))

    def opened(self, tasks: dict[UUID, UUID]) -> set[str]:
        """Return the identifiers that open, of these tasks and their erasures."""
        found = set()
        for task_id, erasure_id in tasks.items():
            near = list(self._near(task_id))
            ciphers = [self.vault, *self._task_keys(near, subject_key_row(task_id))]
            found |= {
                opened.decode()
                for cipher in ciphers
                for ordinal in range(3)
                for opened in _open_all(cipher, near, range(29, 28 + LONGEST), row_of(erasure_id, ordinal))
            }
        return found

    def salts(self, tasks: Iterable[UUID]) -> set[str]:
        """Return the salts that open, of these tasks."""
        found = set()
        for task_id in tasks:
            near = list(self._near(task_id))
            for cipher in [self.vault, *self._task_keys(near, receipt_key_row(task_id))]:
                for ordinal in range(3):
                    row = f"salt/{task_id}/{ordinal}"
                    found |= {salt.decode() for salt in _open_all(cipher, near, [60], row)}
        return found

    def confirmed(self) -> set[str]:
        """Return the guesses whose hashes, for counting people, are in the bytes."""
        hashers = [lambda person: person, *(key.hash_person for key in self.data_keys)]
        return {
            guess
            for guess in self.guesses
            for hash_person in hashers
            if hash_person(self.vault.person(self.tenant_id, guess)) in self.content
        }

    def _task_keys(self, near: list[bytes], row: str) -> list[RowCipher]:
        return [
            RowCipher(task_key)
            for key in self.data_keys
            for task_key in _open_all(key._cipher, near, [WRAPPED_BYTES], row)
        ]

    def _near(self, task_id: UUID) -> Iterator[bytes]:
        """Yield what surrounds the id of a task in a row of either database."""
        for name in (task_id.bytes, task_id.hex.encode()):
            for match in re.finditer(re.escape(name), self.content):
                yield self.content[match.end() : match.end() + REACH]


def _open_all(cipher: RowCipher, windows: list[bytes], lengths: Iterable[int], row: str) -> Iterator[bytes]:
    """Try to open every part of these lengths of every window."""
    tried = set()
    for length in lengths:
        for window in windows:
            for start in range(max(0, len(window) - length)):
                part = window[start : start + length]
                if part in tried:
                    continue
                tried.add(part)
                try:
                    yield cipher.decrypt_bytes(part, row=row)
                except ValueError:
                    continue

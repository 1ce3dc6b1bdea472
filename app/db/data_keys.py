"""The data keys of a deployment: their files in the storage, and their rows in SQL.

A data key is created before anything needs it: its row, then its file, then it becomes current. It is
destroyed in the opposite order: no row needs it, its row is deleted, then its file. A crash in between leaves
a row without a file that nothing needs, or a file that nothing needs. Both are cleaned up later.
"""

import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from uuid import UUID

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from app.core import data_key, logging
from app.core.clock import now
from app.core.data_key import DataKey, receipt_key_row, subject_key_row
from app.core.storage import Storage, StorageError, StorageUnavailable
from app.core.vault import KeyProblem, RowCipher, Vault
from app.db import paths, transitions
from app.db.key_tables import DataKeyRecord, DestroyedDataKey
from app.db.session import Database
from app.db.states import DataKeyPurpose, DataKeyState

log = logging.get_logger("data keys")
CACHED_KEYS = 4096
MAX_LOGGED = 10
TRIES = 10


class DataKeys:
    """Creates, opens and destroys data keys. Opened keys are kept in memory, up to a limit."""

    def __init__(self, database: Database, storage: Storage, vault: Vault) -> None:
        """Use the files in this storage, encrypted under the deployment key."""
        self._database, self._storage, self._vault = database, storage, vault
        self._opened: OrderedDict[UUID, DataKey] = OrderedDict()
        self._lock = threading.Lock()

    # Opening

    def open(self, key_id: UUID) -> DataKey:
        """Return a data key. Raise `KeyProblem` if its file is missing or damaged."""
        with self._lock:
            if key_id in self._opened:
                self._opened.move_to_end(key_id)
                return self._opened[key_id]
        return self._remember(DataKey(key_id, self._read(key_id)))

    def subject_cipher(self, task_id: UUID, wrapped: bytes | None, key_id: UUID | None) -> RowCipher:
        """Return the cipher of a task's identifiers, from its key and the id of the data key.

        Without them, the identifiers were stored by an earlier version, under the deployment key.
        """
        return self._cipher(wrapped, key_id, subject_key_row(task_id))

    def receipt_cipher(self, task_id: UUID, wrapped: bytes | None, key_id: UUID | None) -> RowCipher:
        """Return the cipher of a task's salts and statements, in the same way."""
        return self._cipher(wrapped, key_id, receipt_key_row(task_id))

    def _cipher(self, wrapped: bytes | None, key_id: UUID | None, row: str) -> RowCipher:
        if wrapped is None or key_id is None:
            return self._vault
        try:
            task_key = self.open(key_id).unwrap(wrapped, row=row)
        except ValueError:
            raise _damaged(key_id) from None
        return RowCipher(task_key, older=self._vault)

    def _read(self, key_id: UUID) -> bytes:
        path = paths.data_key(key_id)
        try:
            content = b"".join(self._storage.read(path))
        except StorageUnavailable:
            raise
        except StorageError:
            raise KeyProblem(
                f"the data key {path} is missing from the storage; restore this file from a backup, "
                "or the requests that need it cannot be carried out"
            ) from None
        try:
            return data_key.open_file(self._vault, key_id, content)
        except ValueError:
            raise _damaged(key_id) from None

    def _remember(self, key: DataKey) -> DataKey:
        with self._lock:
            self._opened[key.id] = key
            while len(self._opened) > CACHED_KEYS:
                self._opened.popitem(last=False)
        return key

    def _forget(self, key_id: UUID) -> None:
        with self._lock:
            self._opened.pop(key_id, None)

    # Creating

    def current(
        self, session: Session, purpose: DataKeyPurpose, owners: Collection[UUID]
    ) -> Mapping[UUID, DataKey]:
        """Return the current keys of these owners, and keep them from being deleted before the commit.

        Owners without a key are left out: leave the transaction, call `create`, and try again.
        """
        if not owners:
            return {}
        found = transitions.current_data_keys(session, purpose, owners, lock=True)
        return {owner: self.open(key_id) for owner, key_id in found.items()}

    def create(self, purpose: DataKeyPurpose, owners: Iterable[UUID]) -> None:
        """Create a current key for each owner that has none. Do not call this within a transaction."""
        for owner in owners:
            with self._database.writing() as session:
                if transitions.current_data_keys(session, purpose, [owner]):
                    continue
                key_id = transitions.announce_data_key(session, purpose, owner, now())
            secret = data_key.new_secret()
            self._storage.write(paths.data_key(key_id), [data_key.seal_file(self._vault, key_id, secret)])
            with self._database.writing() as session:
                activated = transitions.activate_data_key(session, key_id)
                if not activated:
                    session.execute(delete(DataKeyRecord).where(DataKeyRecord.id == key_id))
            if activated:
                self._remember(DataKey(key_id, secret))
            else:
                self._storage.delete(paths.data_key(key_id))

    def ensure(self, purpose: DataKeyPurpose, owner: UUID) -> DataKey:
        """Return the current key of an owner, and create it if there is none.

        A transaction that refers to it fails if the key was destroyed in the meantime.
        """
        for _ in range(TRIES):
            with self._database.reading() as session:
                found = transitions.current_data_keys(session, purpose, [owner])
            if found:
                return self.open(found[owner])
            self.create(purpose, [owner])
        raise KeyProblem("a data key was replaced again and again while it was needed; try again")

    # Destroying

    def destroy(self, key_id: UUID) -> bool:
        """Destroy a doomed key if no row needs it. Return False if one does."""
        with self._database.writing() as session:
            if not transitions.delete_data_key(session, key_id, now()):
                return False
        self._destroy_file(key_id)
        return True

    def destroy_files(self, owner: UUID | None = None) -> int:
        """Delete the files of keys whose rows are deleted, after a crash. Return how many there were."""
        query = select(DestroyedDataKey.id)
        if owner is not None:
            query = query.where(DestroyedDataKey.owner_id == owner)
        with self._database.reading() as session:
            left = session.scalars(query).all()
        for key_id in left:
            self._destroy_file(key_id)
        return len(left)

    def sweep_files(self) -> int:
        """Delete files of keys that have no row, and return how many there were.

        A key gets its row before its file, and a row that was deleted never comes back. So a file that was
        listed before the rows are read, and has none, is of no use.
        """
        listed = self._storage.list(paths.DATA_KEYS)
        with self._database.reading() as session:
            rows = session.execute(select(DataKeyRecord.id, DataKeyRecord.state)).all()
        known = {str(key_id) for key_id, _ in rows}
        expected = [key_id for key_id, state in rows if state != DataKeyState.PENDING]
        self._report_missing(set(listed), expected)
        matches = [paths.DATA_KEY.fullmatch(path) for path in listed]
        orphans = [match[0] for match in matches if match is not None and match["id"] not in known]
        if orphans:
            self._storage.delete(*orphans)
        return len(orphans)

    def _report_missing(self, listed: set[str], expected: Iterable[UUID]) -> None:
        """Log the keys without a file, and let nothing more be recorded under them."""
        suspects = [key_id for key_id in expected if paths.data_key(key_id) not in listed]
        missing = [key_id for key_id in suspects if not self._storage.exists(paths.data_key(key_id))]
        if missing:
            with self._database.writing() as session:
                lost = transitions.retire_lost_data_keys(session, missing)
            if lost:
                names = ", ".join(paths.data_key(key_id) for key_id in lost[:MAX_LOGGED])
                log.error("files of data keys are missing from the storage", files=len(lost), problem=names)

    def _destroy_file(self, key_id: UUID) -> None:
        self._forget(key_id)
        self._storage.delete(paths.data_key(key_id))
        self._forget_destroyed(key_id)

    def _forget_destroyed(self, key_id: UUID) -> None:
        with self._database.writing() as session:
            session.execute(delete(DestroyedDataKey).where(DestroyedDataKey.id == key_id))


def _damaged(key_id: UUID) -> KeyProblem:
    return KeyProblem(
        f"the data key {paths.data_key(key_id)} in the storage is damaged, or belongs to another deployment "
        "key; restore this file from a backup, or put the right deployment key in place"
    )

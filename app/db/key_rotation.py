"""Rotation of the deployment key: everything that is encrypted under the previous key is encrypted again.

Data keys protect everything about people, so only their files, and a few secrets of integrations, are under
the deployment key itself. Both keys open them until the rotation is complete. Every step is one short
transaction and can be repeated, so a rotation that was cut short is run again.
"""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from sqlalchemy import Select, select
from sqlalchemy.orm import InstrumentedAttribute

from app.core import data_key
from app.core.storage import Storage, StorageError, StorageUnavailable
from app.core.vault import KeyProblem, Vault
from app.db import callbacks, deployment, paths, webhook_store
from app.db.callbacks import RequestCallback
from app.db.data_keys import TRIES
from app.db.key_renewal import KeyRenewal
from app.db.key_tables import DataKeyRecord
from app.db.session import Database
from app.db.states import DataKeyState
from app.db.webhooks import WebhookEndpoint

ROWS_PER_TRANSACTION = 500


class KeyRotation:
    """Replaces the deployment key. The vault has the new key and the previous one."""

    def __init__(self, database: Database, storage: Storage, vault: Vault, renewal: KeyRenewal) -> None:
        """Prepare to work. Nothing is changed before `run`."""
        self._database, self._storage, self._vault, self._renewal = database, storage, vault, renewal

    def run(self) -> int:
        """Encrypt everything again, and return how many values and files there were.

        Parts of the service may still write under the previous key until all of them know the new one. So
        the search is repeated until it finds nothing, and once more after the database knows the new key.
        """
        self._renewal.adopt_stored()
        if self._renewal.has_unadopted():
            raise KeyProblem(
                "a batch that has not ended holds identifiers or salts of an earlier version; wait until it "
                "has ended, then run the command again"
            )
        renewed = self._renew_until_nothing_is_left()
        with self._database.writing() as session:
            deployment.finish_rotation(session, self._vault)
        renewed += self._renew_until_nothing_is_left()
        self._database.forget_deleted_bytes()
        return renewed

    def _renew_until_nothing_is_left(self) -> int:
        total = 0
        for _ in range(TRIES):
            renewed = self._renew_files() + self._renew_columns()
            if not renewed:
                return total
            total += renewed
        raise KeyProblem(
            "parts of the service still write under the previous deployment key; restart all of them with "
            "both keys, then run the command again"
        )

    def _renew_files(self) -> int:
        with self._database.reading() as session:
            key_ids = session.scalars(select(DataKeyRecord.id).order_by(DataKeyRecord.id)).all()
        return sum(self._renew_file(key_id) for key_id in key_ids)

    def _renew_file(self, key_id: UUID) -> bool:
        """Encrypt the file of a data key again, unless the new key opens it already.

        The row is locked, so the file cannot be destroyed at the same time, and does not come back.
        """
        path = paths.data_key(key_id)
        with self._database.writing() as session:
            row = session.scalar(
                select(DataKeyRecord).where(DataKeyRecord.id == key_id).with_for_update(read=True)
            )
            if row is None:
                return False
            try:
                content = b"".join(self._storage.read(path))
            except StorageUnavailable:
                raise
            except StorageError:
                if row.state == DataKeyState.PENDING:  # it is not written yet, and will be under the new key
                    return False
                raise KeyProblem(
                    f"the data key {path} is missing from the storage; restore this file from a backup"
                ) from None
            renewed = self._renew(content, data_key.file_row(key_id), path)
            if renewed is not None:
                self._storage.write(path, [renewed])
        return renewed is not None

    def _renew_columns(self) -> int:
        return (
            self._renew_column(WebhookEndpoint, WebhookEndpoint.secret, webhook_store.secret_row)
            + self._renew_column(WebhookEndpoint, WebhookEndpoint.previous_secret, webhook_store.secret_row)
            + self._renew_column(RequestCallback, RequestCallback.token, callbacks.token_row)
        )

    def _renew_column(
        self, table: type[Any], column: InstrumentedAttribute[Any], row_of: Callable[[UUID], str]
    ) -> int:
        """Encrypt the values of a column again, page by page."""
        renewed, last = 0, None
        while True:
            page: Select[Any] = select(table).where(column.is_not(None)).order_by(table.id)
            if last is not None:
                page = page.where(table.id > last)
            with self._database.writing() as session:
                rows = session.scalars(page.limit(ROWS_PER_TRANSACTION).with_for_update()).all()
                renewed += sum(self._renew_value(row, column.key, row_of(row.id)) for row in rows)
            if not rows:
                return renewed
            last = rows[-1].id

    def _renew_value(self, row: Any, column: str, bound_to: str) -> bool:
        value = self._renew(getattr(row, column), bound_to, f"a value in {row.__tablename__}.{column}")
        if value is not None:
            setattr(row, column, value)
        return value is not None

    def _renew(self, sealed: bytes, bound_to: str, place: str) -> bytes | None:
        try:
            return self._vault.renew(sealed, row=bound_to)
        except ValueError:
            raise KeyProblem(
                f"{place} opens with neither deployment key; it is damaged, or another key is missing"
            ) from None

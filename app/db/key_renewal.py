"""Renewal of data keys: what a doomed key still protects is put under the current key, then it is destroyed.

Each task has keys of its own, so only these are encrypted again, and not every row. The hashes that count
people depend on the data key itself, so they are computed again from the identifiers. Every step can be
repeated, and several processes may do the same work at the same time.
"""

from collections.abc import Sequence
from typing import Any, cast
from uuid import UUID

from sqlalchemy import ColumnElement, Select, Table, bindparam, exists, or_, select, update
from sqlalchemy.orm import Session

from app.core.data_key import DataKey, new_task_key, receipt_key_row, subject_key_row
from app.core.vault import KeyProblem, RowCipher, Vault, row_of
from app.db import transitions
from app.db.data_keys import TRIES, DataKeys
from app.db.key_tables import DataKeyRecord
from app.db.session import Database
from app.db.states import DataKeyPurpose, DataKeyState, TaskState
from app.db.tables import Erasure, Task, TaskSubject
from lethe.certificate.commitment import normalise_identifier

TASKS_PER_TRANSACTION = 500
PEOPLE_PER_TRANSACTION = 20_000

# A purge may delete an identifier at the same time. Nothing may be written about that person any more.
_UPDATE_PERSON = (
    update(cast("Table", TaskSubject.__table__))
    .where(
        TaskSubject.task_id == bindparam("of"),
        TaskSubject.ordinal == bindparam("number"),
        TaskSubject.identifier.is_not(None),
    )
    .values(identifier=bindparam("identifier"), person=bindparam("person"))
)


class KeyRenewal:
    """Puts tasks under current data keys, and destroys the keys that nothing needs then."""

    def __init__(self, database: Database, data_keys: DataKeys, vault: Vault) -> None:
        """Work on this database. The vault opens what earlier versions encrypted."""
        self._database, self._data_keys, self._vault = database, data_keys, vault

    def destroy_doomed(self, owner_id: UUID) -> None:
        """Destroy every doomed key of a model or batch, now. Return when their files are gone."""
        with self._database.reading() as session:
            doomed = transitions.doomed_data_keys(session, DataKeyRecord.owner_id == owner_id)
        for key in doomed:
            for _ in range(TRIES):
                self._move_all(key)
                if self._data_keys.destroy(key.id):
                    break
            else:
                raise RuntimeError("a data key is still needed after its rows were moved to another one")
        self._data_keys.destroy_files(owner_id)

    def destroy_some(self, transactions: int) -> int:
        """Work on doomed keys for about this many transactions. Return how many keys were destroyed.

        A key that cannot be replaced does not keep the others from being destroyed.
        """
        with self._database.reading() as session:
            doomed = transitions.doomed_data_keys(session)
        destroyed, unreadable = self._data_keys.destroy_files(), None
        for key in doomed:
            try:
                while transactions > 0 and self._move_some(key):
                    transactions -= 1
                if transactions <= 0:
                    break
                transactions -= 1
                destroyed += self._data_keys.destroy(key.id)
            except KeyProblem as problem:
                unreadable = unreadable or problem
        if unreadable is not None:
            raise unreadable
        return destroyed

    def unify_waiting(self, model_id: UUID) -> None:
        """Put all identifiers that wait for a model under its current key, so that people can be counted.

        Two hashes of one person are equal only under the same data key.
        """
        current = select(DataKeyRecord.id).where(
            DataKeyRecord.purpose == DataKeyPurpose.SUBJECTS,
            DataKeyRecord.owner_id == model_id,
            DataKeyRecord.state == DataKeyState.CURRENT,
        )
        others = (
            Task.model_id == model_id,
            Task.state == TaskState.RECEIVED,
            or_(Task.subject_key_id.is_(None), Task.subject_key_id.not_in(current)),
        )
        while self._move_page(_subject_tasks(*others), DataKeyPurpose.SUBJECTS):
            pass

    def adopt_stored(self) -> int:
        """Put under data keys what an earlier version encrypted under the deployment key, or not at all.

        Return the number of tasks. Tasks in a batch that has not ended are left to its worker.
        """
        waiting = _subject_tasks(
            Task.subject_key_id.is_(None), Task.state.in_((TaskState.RECEIVED, TaskState.FAILED))
        )
        kept = _receipt_tasks(
            Task.receipt_key_id.is_(None),
            or_(Task.receipts_until.is_not(None), Task.state == TaskState.FAILED),
        )
        adopted = 0
        while moved := self._move_page(waiting, DataKeyPurpose.SUBJECTS):
            adopted += moved
        while moved := self._move_page(kept, DataKeyPurpose.RECEIPTS):
            adopted += moved
        if adopted:
            self._database.forget_deleted_bytes()
        return adopted

    def has_unadopted(self) -> bool:
        """Return whether anything about people is still encrypted under the deployment key itself."""
        is_open = Task.state.not_in((TaskState.COMPLETED, TaskState.WITHDRAWN))
        left = (
            _subject_tasks(Task.subject_key_id.is_(None), is_open),
            _receipt_tasks(Task.receipt_key_id.is_(None), or_(Task.receipts_until.is_not(None), is_open)),
        )
        with self._database.reading() as session:
            return any(session.scalar(tasks.limit(1)) is not None for tasks in left)

    def _move_all(self, key: DataKeyRecord) -> None:
        while self._move_some(key):
            pass

    def _move_some(self, key: DataKeyRecord) -> int:
        """Put some tasks that need this key under the current key of its owner."""
        match DataKeyPurpose(key.purpose):
            case DataKeyPurpose.SUBJECTS:
                return self._move_page(_subject_tasks(Task.subject_key_id == key.id), DataKeyPurpose.SUBJECTS)
            case DataKeyPurpose.RECEIPTS:
                return self._move_page(_receipt_tasks(Task.receipt_key_id == key.id), DataKeyPurpose.RECEIPTS)
            case DataKeyPurpose.FINGERPRINTS:  # its rows expire
                return 0

    def _move_page(self, tasks: Select[Task], purpose: DataKeyPurpose) -> int:
        """Put a page of tasks under current keys in one transaction. Return how many there were.

        Tasks that are locked come later, so that two processes cannot wait for each other. If all that are
        left are locked, wait for one.
        """
        move = self._move_subjects if purpose == DataKeyPurpose.SUBJECTS else self._move_receipts
        for _ in range(TRIES):
            with self._database.reading() as session:
                owners = {
                    _owner(task, purpose) for task in session.scalars(tasks.limit(TASKS_PER_TRANSACTION))
                }
            if not owners:
                return 0
            self._data_keys.create(purpose, owners)
            with self._database.writing() as session:
                keys = self._data_keys.current(session, purpose, owners)
                page = _lock(session, tasks, set(keys), purpose)
                for task in page:
                    move(session, task, keys[_owner(task, purpose)])
            if page:
                return len(page)
        return 0

    def _move_subjects(self, session: Session, task: Task, data_key: DataKey) -> None:
        """Put the identifiers of a task under a data key, and hash the people under it."""
        cipher = self._data_keys.subject_cipher(task.id, task.subject_key, task.subject_key_id)
        tenant_id = session.scalars(select(Erasure.tenant_id).where(Erasure.id == task.erasure_id)).one()
        columns = select(TaskSubject.ordinal, TaskSubject.identifier)
        rows = session.execute(
            columns.where(TaskSubject.task_id == task.id, TaskSubject.identifier.is_not(None))
        ).all()
        adopts = task.subject_key is None or task.subject_key_id is None
        task_key = new_task_key() if adopts else self._unwrap(task)
        new_cipher, changes = RowCipher(task_key), []
        for ordinal, sealed in rows:
            row = row_of(task.erasure_id, ordinal)
            identifier = cipher.decrypt(sealed or b"", row=row)
            person = self._vault.person(tenant_id, normalise_identifier(identifier))
            kept = new_cipher.encrypt(identifier, row=row) if adopts else sealed
            hashed = data_key.hash_person(person)
            changes.append({"of": task.id, "number": ordinal, "identifier": kept, "person": hashed})
        if changes:
            session.connection().execute(_UPDATE_PERSON, changes)
        task.subject_key = data_key.wrap(task_key, row=subject_key_row(task.id))
        task.subject_key_id = data_key.id

    def _unwrap(self, task: Task) -> bytes:
        assert task.subject_key is not None
        assert task.subject_key_id is not None
        return self._data_keys.open(task.subject_key_id).unwrap(
            task.subject_key, row=subject_key_row(task.id)
        )

    def _move_receipts(self, session: Session, task: Task, data_key: DataKey) -> None:
        """Put the salts and statements of a task under a data key."""
        row = receipt_key_row(task.id)
        if task.receipt_key is not None and task.receipt_key_id is not None:
            task_key = self._data_keys.open(task.receipt_key_id).unwrap(task.receipt_key, row=row)
        else:
            task_key = new_task_key()
            cipher = RowCipher(task_key)
            rows = session.scalars(select(TaskSubject).where(TaskSubject.task_id == task.id, _has_receipt()))
            for subject in rows:
                place: dict[str, Any] = {"task_id": task.id, "ordinal": subject.ordinal}
                if subject.salt is not None:
                    subject.salt = cipher.seal_salt(self._vault.open_salt(subject.salt, **place), **place)
                if subject.no_data is not None:
                    statement = self._vault.open_statement(subject.no_data, **place)
                    subject.no_data = cipher.seal_statement(statement, **place)
        task.receipt_key = data_key.wrap(task_key, row=row)
        task.receipt_key_id = data_key.id


def _lock(
    session: Session, tasks: Select[Task], owners: set[UUID], purpose: DataKeyPurpose
) -> Sequence[Task]:
    """Lock a page of tasks whose owners have a key, of bounded size. Wait only for a single one."""
    column = Task.model_id if purpose == DataKeyPurpose.SUBJECTS else Task.batch_id
    ours = tasks.where(column.in_(owners)).order_by(Task.id)
    free = ours.limit(TASKS_PER_TRANSACTION).with_for_update(of=Task, key_share=True, skip_locked=True)
    page: list[Task] = []
    people = 0
    one = ours.limit(1).with_for_update(of=Task, key_share=True)
    for task in session.scalars(free).all() or session.scalars(one).all():
        people += task.subjects
        if page and people > PEOPLE_PER_TRANSACTION:
            break
        page.append(task)
    return page


def _subject_tasks(*which: ColumnElement[bool]) -> Select[Task]:
    """Select tasks that have identifiers, or a key of some."""
    has_identifier = exists().where(TaskSubject.task_id == Task.id, TaskSubject.identifier.is_not(None))
    return select(Task).where(*which, or_(Task.subject_key_id.is_not(None), has_identifier))


def _receipt_tasks(*which: ColumnElement[bool]) -> Select[Task]:
    """Select tasks that have salts or statements, or a key of some."""
    has_receipts = exists().where(TaskSubject.task_id == Task.id, _has_receipt())
    return select(Task).where(*which, or_(Task.receipt_key_id.is_not(None), has_receipts))


def _has_receipt() -> ColumnElement[bool]:
    return or_(TaskSubject.salt.is_not(None), TaskSubject.no_data.is_not(None))


def _owner(task: Task, purpose: DataKeyPurpose) -> UUID:
    if purpose == DataKeyPurpose.SUBJECTS:
        return task.model_id
    assert task.batch_id is not None  # a task without a batch has no receipts
    return task.batch_id

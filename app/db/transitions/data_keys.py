"""State changes of data keys: pending → current → retired → doomed, then the row is deleted.

The foreign keys of the rows that need a data key make this safe. While a transaction that adds such a row is
under way, the key's row is locked and cannot be deleted. Once it is deleted, no row can refer to it. Only
then is the file destroyed, so nothing that is stored ever lacks its key.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from uuid import UUID

from sqlalchemy import ColumnElement, Select, delete, exists, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.core import clock
from app.core.clock import new_id
from app.db.key_tables import DataKeyRecord, DestroyedDataKey, mark_dirty
from app.db.states import DataKeyPurpose, DataKeyState
from app.db.tables import IdempotencyKey, Task


def announce_data_key(session: Session, purpose: DataKeyPurpose, owner_id: UUID, now: datetime) -> UUID:
    """Add a key whose file is written next. So every file in the storage has, or had, a row."""
    key = DataKeyRecord(
        id=new_id(), purpose=purpose, owner_id=owner_id, state=DataKeyState.PENDING, created_at=now
    )
    session.add(key)
    return key.id


def activate_data_key(session: Session, key_id: UUID) -> bool:
    """pending → current, after its file was written. Return False if another key was faster.

    A key whose row was deleted meanwhile, because its creator seemed to be dead, is not activated either.
    """
    activated = (
        update(DataKeyRecord)
        .where(DataKeyRecord.id == key_id, DataKeyRecord.state == DataKeyState.PENDING)
        .values(state=DataKeyState.CURRENT)
        .returning(DataKeyRecord.id)
    )
    try:
        with session.begin_nested():
            return session.scalar(activated) is not None
    except IntegrityError:  # the owner has a current key
        return False


def current_data_keys(
    session: Session, purpose: DataKeyPurpose, owners: Collection[UUID], *, lock: bool = False
) -> Mapping[UUID, UUID]:
    """Return the current key of each owner that has one. `lock` keeps them from being deleted."""
    query = select(DataKeyRecord.owner_id, DataKeyRecord.id).where(
        DataKeyRecord.purpose == purpose,
        DataKeyRecord.owner_id.in_(owners),
        DataKeyRecord.state == DataKeyState.CURRENT,
    )
    if lock:
        query = query.with_for_update(read=True, key_share=True)
    return {row[0]: row[1] for row in session.execute(query)}


def retire_data_key(session: Session, purpose: DataKeyPurpose, owner_id: UUID) -> None:
    """current → retired: what is written from now on is protected by another key."""
    _change(
        session,
        DataKeyState.RETIRED,
        DataKeyRecord.purpose == purpose,
        DataKeyRecord.owner_id == owner_id,
        DataKeyRecord.state == DataKeyState.CURRENT,
    )


def doom_data_keys(session: Session, keys: Select[UUID | None]) -> None:
    """any → doomed: something that these keys protect was deleted and has to become unreadable."""
    _change(session, DataKeyState.DOOMED, DataKeyRecord.id.in_(keys))


def doom_dirty_data_keys(session: Session, before: datetime) -> None:
    """current or retired → doomed, for keys that have been dirty since before this time."""
    _change(
        session,
        DataKeyState.DOOMED,
        DataKeyRecord.dirty_at < before,
        DataKeyRecord.state != DataKeyState.DOOMED,
    )


def retire_lost_data_keys(session: Session, keys: Collection[UUID]) -> Sequence[UUID]:
    """current → retired, for keys whose file is missing. Return which of these keys there are."""
    lost = DataKeyRecord.id.in_(keys)
    _change(session, DataKeyState.RETIRED, lost, DataKeyRecord.state == DataKeyState.CURRENT)
    return session.scalars(select(DataKeyRecord.id).where(lost).order_by(DataKeyRecord.id)).all()


def retire_fingerprint_keys(session: Session, before: datetime) -> None:
    """current → retired, for the key of fingerprints if it was created before this time."""
    _change(
        session,
        DataKeyState.RETIRED,
        DataKeyRecord.purpose == DataKeyPurpose.FINGERPRINTS,
        DataKeyRecord.state == DataKeyState.CURRENT,
        DataKeyRecord.created_at < before,
    )


def doom_unused_data_keys(session: Session, pending_before: datetime) -> None:
    """retired → doomed, for keys that nothing needs. Pending keys whose creator seems to be dead as well."""
    unused = (DataKeyRecord.state == DataKeyState.RETIRED) & ~_is_needed()
    abandoned = (DataKeyRecord.state == DataKeyState.PENDING) & (DataKeyRecord.created_at < pending_before)
    _change(session, DataKeyState.DOOMED, unused | abandoned)


def doomed_data_keys(session: Session, *which: ColumnElement[bool]) -> Sequence[DataKeyRecord]:
    """Return the doomed keys, oldest first."""
    query = select(DataKeyRecord).where(DataKeyRecord.state == DataKeyState.DOOMED, *which)
    return session.scalars(query.order_by(DataKeyRecord.id)).all()


def forget_subject_keys(session: Session, tasks: Mapping[UUID, UUID | None]) -> None:
    """Delete the keys of the identifiers of these tasks, and note which data keys protected them."""
    forgotten = update(Task).where(Task.id.in_(list(tasks))).values(subject_key=None, subject_key_id=None)
    session.execute(forgotten.execution_options(synchronize_session=False))
    mark_dirty(session, set(tasks.values()), clock.now())


def delete_data_key(session: Session, key_id: UUID, now: datetime) -> bool:
    """Delete a doomed key that no row needs, and note that its file is to be destroyed.

    Return False if a row still needs it. The lock waits for transactions that are adding such rows, and a
    statement that begins after it has been taken sees them.
    """
    doomed = select(DataKeyRecord).where(
        DataKeyRecord.id == key_id, DataKeyRecord.state == DataKeyState.DOOMED
    )
    key = session.scalar(doomed.with_for_update())
    if key is None:  # another process was faster
        return True
    needed = select(DataKeyRecord.id).where(DataKeyRecord.id == key_id, _is_needed())
    if session.scalar(needed) is not None:
        return False
    session.add(DestroyedDataKey(id=key.id, owner_id=key.owner_id, destroyed_at=now))
    session.flush()
    session.execute(delete(DataKeyRecord).where(DataKeyRecord.id == key_id))
    return True


def _is_needed() -> ColumnElement[bool]:
    return or_(
        exists().where(Task.subject_key_id == DataKeyRecord.id),
        exists().where(Task.receipt_key_id == DataKeyRecord.id),
        exists().where(IdempotencyKey.hash_key_id == DataKeyRecord.id),
    )


def _change(session: Session, state: DataKeyState, *which: ColumnElement[bool]) -> None:
    changed = update(DataKeyRecord).where(*which).values(state=DataKeyState(state))
    session.execute(changed.execution_options(synchronize_session=False))

"""The tables of data keys. Their secrets are in files outside SQL (`app.db.data_keys`)."""

from collections.abc import Collection
from datetime import datetime
from uuid import UUID

from sqlalchemy import Index, String, update
from sqlalchemy.orm import Mapped, Session, mapped_column

from app.core.clock import now
from app.db.states import DataKeyPurpose, DataKeyState
from app.db.types import Base, one_of


class DataKeyRecord(Base):
    """A data key. Rows that need it refer to it, so the database refuses to delete it too early."""

    __tablename__ = "data_keys"
    id: Mapped[UUID] = mapped_column(primary_key=True)
    purpose: Mapped[str] = mapped_column(String(16))
    owner_id: Mapped[UUID]
    """The model of identifiers, the batch of receipts, or `DEPLOYMENT`."""
    state: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[datetime] = mapped_column(default=now)
    dirty_at: Mapped[datetime | None]
    """Since when the key protects something that was deleted. It is renewed some time later."""
    __table_args__ = (
        one_of("purpose", DataKeyPurpose),
        one_of("state", DataKeyState),
        Index("ix_data_keys_owner_id", "owner_id"),
        Index(
            "uq_data_keys_current",
            "purpose",
            "owner_id",
            unique=True,
            sqlite_where=state == DataKeyState.CURRENT,
            postgresql_where=state == DataKeyState.CURRENT,
        ),
    )


class DestroyedDataKey(Base):
    """A data key that no row can refer to any more, until its file is deleted."""

    __tablename__ = "destroyed_data_keys"
    id: Mapped[UUID] = mapped_column(primary_key=True)
    owner_id: Mapped[UUID]
    destroyed_at: Mapped[datetime] = mapped_column(default=now)


DEPLOYMENT = UUID(int=0)
"""The owner of keys that belong to the deployment as a whole."""


def mark_dirty(session: Session, keys: Collection[UUID | None], moment: datetime) -> None:
    """Note that something which these keys protect was deleted. They are renewed some time later."""
    ids = [key_id for key_id in keys if key_id is not None]
    if ids:
        dirty = update(DataKeyRecord).where(DataKeyRecord.id.in_(ids), DataKeyRecord.dirty_at.is_(None))
        session.execute(dirty.values(dirty_at=moment).execution_options(synchronize_session=False))

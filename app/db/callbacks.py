"""Callbacks to the systems that other protocols' requests came from: OpenDSR and Fides.

A callback belongs to an erasure. The dispatcher compares the status of the erasure with the one it reported
last, and reports a new one. The URL passes the checks of webhook targets every time.
"""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    ForeignKey,
    Index,
    LargeBinary,
    String,
    UniqueConstraint,
    and_,
    func,
    or_,
    select,
    update,
)
from sqlalchemy.orm import Mapped, Session, mapped_column

from app.core.clock import new_id, now
from app.core.vault import Vault
from app.db.session import insert_if_absent
from app.db.states import TaskState
from app.db.tables import Erasure, Task
from app.db.types import Base, one_of


class Protocol(StrEnum):
    """The protocols that requests can arrive by."""

    OPENDSR = "opendsr"
    FIDES = "fides"


class RequestStatus(StrEnum):
    """The statuses of an OpenDSR request."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    CANCELLED = "cancelled"


ENDED = (RequestStatus.COMPLETED, RequestStatus.CANCELLED)


class RequestCallback(Base):
    """An address that wants to hear how a request goes.

    `next_attempt_at` doubles as a lease, and `attempts` as a fencing token, as for webhook deliveries.
    """

    __tablename__ = "request_callbacks"
    __table_args__ = (
        UniqueConstraint("erasure_id", "url"),
        one_of("protocol", Protocol),
        Index("ix_request_callbacks_next_attempt_at", "next_attempt_at"),
    )
    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_id)
    erasure_id: Mapped[UUID] = mapped_column(ForeignKey("erasures.id"))
    protocol: Mapped[str] = mapped_column(String(16))
    request_id: Mapped[str] = mapped_column(String(100))
    """The id of the request in the other system."""
    url: Mapped[str] = mapped_column(String(2000))
    token: Mapped[bytes | None] = mapped_column(LargeBinary())
    """The token to send along, encrypted. It is deleted after the last report."""
    reported: Mapped[str] = mapped_column(String(16))
    """The status that was reported last. Empty before the first report."""
    attempts: Mapped[int] = mapped_column(default=0)
    tries: Mapped[int] = mapped_column(default=0)
    next_attempt_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]


def reference_of(protocol: Protocol, request_id: str) -> str:
    """Return the reference of the erasure that a request of another system became."""
    return f"{protocol}:{request_id}"


def erasure_for(session: Session, tenant_id: UUID, protocol: Protocol, request_id: str) -> Erasure | None:
    """Return the erasure that a request of another system became, or None."""
    return session.scalar(
        select(Erasure)
        .where(Erasure.tenant_id == tenant_id, Erasure.reference == reference_of(protocol, request_id))
        .order_by(Erasure.id)
        .limit(1)
    )


def add_callbacks(
    session: Session,
    vault: Vault,
    erasure_id: UUID,
    protocol: Protocol,
    request_id: str,
    urls: Iterable[str],
    token: str | None = None,
) -> None:
    """Add callbacks to an erasure. Adding the same address again changes nothing."""
    for url in urls:
        callback_id = new_id()
        insert_if_absent(
            session,
            RequestCallback,
            id=callback_id,
            erasure_id=erasure_id,
            protocol=protocol.value,
            request_id=request_id,
            url=url,
            token=None if token is None else vault.encrypt(token, row=token_row(callback_id)),
            reported="",
            attempts=0,
            tries=0,
            next_attempt_at=now(),
            ended_at=None,
        )


def token_of(vault: Vault, callback: RequestCallback) -> str | None:
    """Decrypt the token of a callback, if it has one."""
    return None if callback.token is None else vault.decrypt(callback.token, row=token_row(callback.id))


def token_row(callback_id: UUID) -> str:
    """Return the row that the token of a callback is bound to."""
    return f"callback/{callback_id}"


def status_of(session: Session, erasure_id: UUID) -> RequestStatus:
    """Return the status of an erasure as OpenDSR names it. A failed batch is still in progress."""
    states = set(session.scalars(select(Task.state).where(Task.erasure_id == erasure_id)))
    return status_from(TaskState(state) for state in states)


def status_from(states: Iterable[TaskState]) -> RequestStatus:
    """Derive a status from the states of an erasure's tasks.

    >>> status_from([TaskState.COMPLETED, TaskState.WITHDRAWN]).value, status_from([]).value
    ('completed', 'completed')
    """
    distinct = set(states)
    if distinct == {TaskState.WITHDRAWN}:
        return RequestStatus.CANCELLED
    if distinct <= {TaskState.COMPLETED, TaskState.WITHDRAWN}:
        return RequestStatus.COMPLETED
    if distinct <= {TaskState.RECEIVED, TaskState.WITHDRAWN}:
        return RequestStatus.PENDING
    return RequestStatus.IN_PROGRESS


def is_due(moment: datetime, longest: timedelta) -> ColumnElement[bool]:
    """Return the condition that a callback has to be looked at.

    None is ever postponed by more than `longest`: one that appears to be was written before a clock jumped
    back.
    """
    at = RequestCallback.next_attempt_at
    return and_(RequestCallback.ended_at.is_(None), or_(at <= moment, at > moment + longest))


def due(
    session: Session, condition: ColumnElement[bool], *, limit: int, busy_tenants: Collection[UUID]
) -> Sequence[UUID]:
    """Return the ids of up to `limit` due callbacks: tenants take turns, those waiting longest first.

    Those of `busy_tenants` have to wait.
    """
    first = (RequestCallback.next_attempt_at, RequestCallback.id)
    turn = func.row_number().over(partition_by=Erasure.tenant_id, order_by=first)
    return session.scalars(
        select(RequestCallback.id)
        .join(Erasure, Erasure.id == RequestCallback.erasure_id)
        .where(condition, Erasure.tenant_id.not_in(busy_tenants))
        .order_by(turn, *first)
        .limit(limit)
    ).all()


def lock(
    session: Session, ids: Sequence[UUID], condition: ColumnElement[bool]
) -> list[tuple[RequestCallback, Erasure]]:
    """Lock the callbacks that are still due, and return them with their erasures, in this order."""
    rows = session.execute(
        select(RequestCallback, Erasure)
        .join(Erasure, Erasure.id == RequestCallback.erasure_id)
        .where(RequestCallback.id.in_(ids), condition)
        .with_for_update(skip_locked=True, of=RequestCallback)
    )
    locked = {callback.id: (callback, erasure) for callback, erasure in rows}
    return [locked[callback_id] for callback_id in ids if callback_id in locked]


def finish_attempt(session: Session, callback_id: UUID, attempt: int, **values: object) -> bool:
    """Record how an attempt ended. Return False, and change nothing, if a newer attempt has begun."""
    query = update(RequestCallback).where(
        RequestCallback.id == callback_id, RequestCallback.attempts == attempt
    )
    return session.scalar(query.values(**values).returning(RequestCallback.id)) is not None

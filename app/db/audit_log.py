"""The audit log: an append-only record of who did what, one hash chain per tenant.

Code that changes something on behalf of a caller calls `record` in the transaction that makes the change, so
an entry exists exactly when the change was committed. Call it last: it locks the tenant's chain until the
transaction ends. The caller is whoever `acting_as` or `set_actor` named. Triggers in the database refuse to
change or delete an entry, and workers sign the newest hash from time to time (`sign_heads`).

Entries hold ids, names of models and choices of a policy. Free text that someone sent, such as the reason of
an extension, is not copied, because it may be about a person.
"""

import getpass
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, ForeignKey, LargeBinary, Select, String, Text, insert, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from app.core.clock import now
from app.db import log_store
from app.db.tables import Tenant
from app.db.types import Base
from lethe.certificate.audit_log import Actor, Entry, ExportedEntry, entry_hash, first_hash, sign_head
from lethe.certificate.keys import Signer

SYSTEM = Actor(kind="system", id="lethe", name="Lethe")
_ACTOR: ContextVar[Actor] = ContextVar("actor", default=SYSTEM)


class Action(StrEnum):
    """What someone did."""

    ERASURE_REQUESTED = "erasure.requested"
    ERASURE_WITHDRAWN = "erasure.withdrawn"
    ERASURE_EXTENDED = "erasure.extended"
    RECEIPTS_DOWNLOADED = "receipts.downloaded"
    RECEIPTS_ACKNOWLEDGED = "receipts.acknowledged"
    BATCH_APPROVED = "batch.approved"
    BATCH_DISCARDED = "batch.discarded"
    BATCH_RETRIED = "batch.retried"
    BATCH_CANCELLED = "batch.cancelled"
    MODEL_CREATED = "model.created"
    MODEL_CHANGED = "model.changed"
    MODEL_REGISTERED = "model.registration-started"
    MODEL_APPENDED = "model.append-started"
    MODEL_FLUSHED = "model.flushed"
    MODEL_RETIRED = "model.retired"
    FILE_UPLOADED = "file.uploaded"
    FILE_IMPORTED = "file.import-planned"
    FILE_DELETED = "file.deleted"
    EVALUATION_STARTED = "evaluation.started"
    ADVICE_STARTED = "advice.started"
    AUDIT_STARTED = "audit.started"
    EVIDENCE_DOWNLOADED = "evidence.downloaded"
    EVIDENCE_DELETED = "evidence.deleted"
    REPORTS_DELETED = "reports.deleted"
    WEBHOOK_CREATED = "webhook.created"
    WEBHOOK_CHANGED = "webhook.changed"
    WEBHOOK_DELETED = "webhook.deleted"
    WEBHOOK_SECRET_ROTATED = "webhook.secret-rotated"  # noqa: S105  (the name of an action)
    WEBHOOK_TESTED = "webhook.tested"
    WEBHOOK_REPLAYED = "webhook.replayed"
    KEY_CREATED = "api-key.created"
    KEY_REVOKED = "api-key.revoked"
    SIGNED_IN = "person.signed-in"
    SIGNED_OUT = "person.signed-out"
    AUDIT_LOG_EXPORTED = "audit-log.exported"


class AuditEntry(Base):
    """One entry. `entry` is the exact text that its hash covers; `at` and `action` repeat parts of it."""

    __tablename__ = "audit_log"
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    sequence: Mapped[int] = mapped_column(BigInteger(), primary_key=True, autoincrement=False)
    at: Mapped[datetime]
    action: Mapped[str] = mapped_column(String(40))
    entry: Mapped[str] = mapped_column(Text())
    hash: Mapped[bytes] = mapped_column(LargeBinary(32))

    @property
    def exported(self) -> ExportedEntry:
        """Return the entry as it is exported."""
        stored = Entry.model_validate_json(self.entry)
        return ExportedEntry(**dict(stored), hash=self.hash.hex())


class AuditHead(Base):
    """A signed head of a tenant's audit log, and its place in the certificate log."""

    __tablename__ = "audit_log_heads"
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    size: Mapped[int] = mapped_column(BigInteger(), primary_key=True, autoincrement=False)
    envelope: Mapped[bytes] = mapped_column(LargeBinary())
    log_index: Mapped[int] = mapped_column(BigInteger(), unique=True)
    signed_at: Mapped[datetime] = mapped_column(default=now)


@dataclass(frozen=True)
class Event:
    """Something to record. `details` holds JSON values only."""

    tenant_id: UUID
    action: Action
    target: str
    actor: Actor
    details: Mapping[str, Any] = field(default_factory=dict)


# Who acts


def current_actor() -> Actor:
    """Return who acts in this context: whom the gateway identified, or the system."""
    return _ACTOR.get()


def set_actor(actor: Actor) -> Token[Actor]:
    """Name who acts until the end of this context. A request has a context of its own."""
    return _ACTOR.set(actor)


@contextmanager
def acting_as(actor: Actor) -> Iterator[None]:
    """Name who acts within the block."""
    token = set_actor(actor)
    try:
        yield
    finally:
        _ACTOR.reset(token)


def operator() -> Actor:
    """Return the account of this machine that runs a server command."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number without a name
        name = f"uid-{os.getuid()}"
    return Actor(kind="operator", id=name, name=name)


# Recording


def record(
    session: Session, tenant_id: UUID, action: Action, target: str, details: Mapping[str, Any] | None = None
) -> None:
    """Append an entry on behalf of the current actor, in the transaction of the change. Call this last."""
    record_all(session, [Event(tenant_id, action, target, current_actor(), details or {})])


def record_all(session: Session, events: Sequence[Event]) -> None:
    """Append several entries with one lock per tenant. Tenants are locked in order, to avoid deadlocks."""
    if not events:
        return
    tenants = {item.tenant_id for item in events}
    session.flush()
    session.execute(
        select(Tenant.id)
        .where(Tenant.id.in_(tenants))
        .order_by(Tenant.id)
        .with_for_update(key_share=True)  # compatible with the locks of foreign keys
    )
    newest = {tenant_id: head(session, tenant_id) for tenant_id in tenants}
    session.execute(insert(AuditEntry), chained(newest, events))


def chained(start: Mapping[UUID, tuple[int, bytes]], events: Iterable[Event]) -> list[dict[str, Any]]:
    """Return the rows that continue the chains of tenants, given what `head` returns for each of them."""
    moment, newest, rows = now(), dict(start), []
    for item in events:
        sequence, previous = newest[item.tenant_id]
        text = Entry(
            sequence=sequence,
            at=moment,
            actor=item.actor,
            action=item.action.value,
            target=item.target,
            details=dict(item.details),
        ).to_bytes()
        link = entry_hash(previous, text)
        newest[item.tenant_id] = sequence + 1, link
        rows.append(
            {
                "tenant_id": item.tenant_id,
                "sequence": sequence,
                "at": moment,
                "action": item.action.value,
                "entry": text.decode(),
                "hash": link,
            }
        )
    return rows


# Reading


def head(session: Session, tenant_id: UUID) -> tuple[int, bytes]:
    """Return the number of entries of a tenant's audit log, and the hash of the newest."""
    newest = session.execute(
        select(AuditEntry.sequence, AuditEntry.hash)
        .where(AuditEntry.tenant_id == tenant_id)
        .order_by(AuditEntry.sequence.desc())
        .limit(1)
    ).first()
    return (0, first_hash(str(tenant_id))) if newest is None else (newest[0] + 1, newest[1])


def entries(
    tenant_id: UUID,
    *,
    action: Action | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> Select[AuditEntry]:
    """Select a tenant's entries, optionally of one action or a period."""
    query = select(AuditEntry).where(AuditEntry.tenant_id == tenant_id)
    if action is not None:
        query = query.where(AuditEntry.action == action)
    if since is not None:
        query = query.where(AuditEntry.at >= since)
    return query if until is None else query.where(AuditEntry.at < until)


def heads(session: Session, tenant_id: UUID, limit: int) -> Sequence[AuditHead]:
    """Return the newest signed heads of a tenant's audit log, oldest first."""
    newest = select(AuditHead).where(AuditHead.tenant_id == tenant_id).order_by(AuditHead.size.desc())
    return session.scalars(newest.limit(limit)).all()[::-1]


# Signing


def sign_heads(session: Session, signer: Signer, origin: str, *, interval: timedelta) -> int:
    """Sign the heads that are due and append them to the certificate log. Return how many were signed.

    A head is due if the tenant's log has grown since the last one was signed, at least `interval` ago. The
    log's head is locked first, so several workers may do this at the same time.
    """
    if not _due(session, interval):
        return 0
    log_store.lock(session)
    due = _due(session, interval)
    signed = [
        (
            tenant_id,
            size,
            sign_head(log_id=str(tenant_id), size=size, head=newest, issued_at=now(), signer=signer),
        )
        for tenant_id in due
        for size, newest in [head(session, tenant_id)]
    ]
    if not signed:
        return 0
    first = log_store.append_statements(
        session, [envelope.digest for _, _, envelope in signed], signer, origin
    )
    for index, (tenant_id, size, envelope) in enumerate(signed, first):
        session.add(AuditHead(tenant_id=tenant_id, size=size, envelope=envelope.raw, log_index=index))
    session.flush()
    return len(signed)


def _due(session: Session, interval: timedelta) -> list[UUID]:
    moment, due = now(), []
    for tenant_id in session.scalars(select(Tenant.id).order_by(Tenant.id)):
        size, _ = head(session, tenant_id)
        last = heads(session, tenant_id, 1)
        grown = size > (last[0].size if last else 0)
        # A time in the future was written before a clock was set back.
        if grown and not (last and timedelta(0) <= moment - last[0].signed_at < interval):
            due.append(tenant_id)
    return due

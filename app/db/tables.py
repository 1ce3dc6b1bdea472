"""Every table. State columns carry check constraints; ids are UUIDv7."""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import BigInteger, ForeignKey, Index, Integer, LargeBinary, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from app.clock import new_id, now
from app.db import states
from app.db.holdings import DatasetImport, DatasetPart, ModelFile, Report, Suppression, Upload
from app.db.types import Base, one_of

__all__ = [
    "ApiKey",
    "Batch",
    "BatchEvent",
    "Certificate",
    "DatasetImport",
    "DatasetPart",
    "Erasure",
    "IdempotencyKey",
    "Job",
    "Lease",
    "LogHead",
    "LogNode",
    "Model",
    "ModelFile",
    "OutboxMessage",
    "Report",
    "SignOut",
    "SigningKeyRecord",
    "Suppression",
    "Task",
    "TaskSubject",
    "Tenant",
    "Upload",
    "Version",
    "WorkerSeen",
]

_BIG = BigInteger().with_variant(Integer(), "sqlite")  # SQLite counts up only in INTEGER keys


class Tenant(Base):
    __tablename__ = "tenants"
    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_id)
    name: Mapped[str] = mapped_column(String(100), unique=True)
    created_at: Mapped[datetime] = mapped_column(default=now)


class ApiKey(Base):
    __tablename__ = "api_keys"
    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_id)
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"), index=True)
    name: Mapped[str] = mapped_column(String(100))
    digest: Mapped[bytes] = mapped_column(LargeBinary(32))
    scopes: Mapped[list[Any]]
    created_at: Mapped[datetime] = mapped_column(default=now)
    revoked_at: Mapped[datetime | None]


class Model(Base):
    __tablename__ = "models"
    __table_args__ = (UniqueConstraint("tenant_id", "name"), one_of("state", states.ModelState))
    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_id)
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"))
    name: Mapped[str] = mapped_column(String(100))
    state: Mapped[str] = mapped_column(String(16), default=states.ModelState.UPLOADING)
    manifest: Mapped[dict[str, Any]]
    generation: Mapped[int] = mapped_column(default=0)
    report: Mapped[dict[str, Any] | None]
    reasons: Mapped[list[Any]] = mapped_column(default=list)
    flush_requested: Mapped[bool] = mapped_column(default=False)
    created_at: Mapped[datetime] = mapped_column(default=now)


class Job(Base):
    """One piece of work for a worker. `token` fences: only the attempt that holds it may write."""

    __tablename__ = "jobs"
    __table_args__ = (one_of("state", states.JobState), one_of("kind", states.JobKind))
    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_id)
    kind: Mapped[str] = mapped_column(String(16))
    model_id: Mapped[UUID] = mapped_column(ForeignKey("models.id"), index=True)
    state: Mapped[str] = mapped_column(String(16), default=states.JobState.WAITING, index=True)
    attempt: Mapped[int] = mapped_column(default=0)
    token: Mapped[UUID | None]
    run_after: Mapped[datetime] = mapped_column(default=now)
    queued_at: Mapped[datetime | None]
    heartbeat_at: Mapped[datetime | None]
    error: Mapped[str | None] = mapped_column(String(1000))
    created_at: Mapped[datetime] = mapped_column(default=now)
    finished_at: Mapped[datetime | None]
    traceparent: Mapped[str | None] = mapped_column(String(55))
    """Where its spans belong (W3C Trace Context), when traces are made."""


class OutboxMessage(Base):
    __tablename__ = "outbox"
    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_id)
    function: Mapped[str] = mapped_column(String(100))
    job_id: Mapped[UUID] = mapped_column(ForeignKey("jobs.id"))
    token: Mapped[UUID]


class Batch(Base):
    __tablename__ = "batches"
    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_id)
    model_id: Mapped[UUID] = mapped_column(ForeignKey("models.id"))
    job_id: Mapped[UUID] = mapped_column(ForeignKey("jobs.id"), unique=True)
    state: Mapped[str] = mapped_column(String(16), default=states.BatchState.SEALED)
    sealed_because: Mapped[str] = mapped_column(String(16))
    policy: Mapped[dict[str, Any]]
    step: Mapped[str | None] = mapped_column(String(16))
    subjects: Mapped[int]
    records: Mapped[int | None]
    shift: Mapped[dict[str, Any] | None]
    progress: Mapped[dict[str, Any] | None]
    held_reason: Mapped[str | None] = mapped_column(String(24))
    error: Mapped[str | None] = mapped_column(String(1000))
    sealed_at: Mapped[datetime] = mapped_column(default=now)
    completed_at: Mapped[datetime | None]
    __table_args__ = (
        one_of("state", states.BatchState),
        Index(
            "uq_batches_open_model_id",
            "model_id",
            unique=True,
            sqlite_where=state.in_(states.OPEN_BATCH),
            postgresql_where=state.in_(states.OPEN_BATCH),
        ),
    )


class HeldDraw(Base):
    """A noised checkpoint that was evaluated and awaits a decision: it is published as it is, or destroyed.

    `decision` is what its owner said, until the worker has done it.
    """

    __tablename__ = "held_draws"
    __table_args__ = (one_of("decision", states.Decision),)
    batch_id: Mapped[UUID] = mapped_column(ForeignKey("batches.id"), primary_key=True)
    draft: Mapped[dict[str, Any]]
    evidence: Mapped[bytes] = mapped_column(LargeBinary())
    payload: Mapped[bytes] = mapped_column(LargeBinary())
    decision: Mapped[str | None] = mapped_column(String(8))


class BatchEvent(Base):
    __tablename__ = "batch_events"
    id: Mapped[int] = mapped_column(_BIG, primary_key=True, autoincrement=True)
    batch_id: Mapped[UUID] = mapped_column(ForeignKey("batches.id"), index=True)
    at: Mapped[datetime] = mapped_column(default=now)
    kind: Mapped[str] = mapped_column(String(32))
    data: Mapped[dict[str, Any]]


class Erasure(Base):
    __tablename__ = "erasures"
    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_id)
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"), index=True)
    reference: Mapped[str | None] = mapped_column(String(200))
    reason: Mapped[str | None] = mapped_column(String(200))
    jurisdiction: Mapped[str | None] = mapped_column(String(50))
    subjects: Mapped[int]
    received_at: Mapped[datetime]
    due_at: Mapped[datetime]
    extended_at: Mapped[datetime | None]
    extension_reason: Mapped[str | None] = mapped_column(String(200))
    created_at: Mapped[datetime] = mapped_column(default=now)
    traceparent: Mapped[str | None] = mapped_column(String(55))


class IdempotencyKey(Base):
    """The answer already given to a request; key and payload are kept as keyed hashes, for a while."""

    __tablename__ = "idempotency_keys"
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    key_hash: Mapped[bytes] = mapped_column(LargeBinary(32), primary_key=True)
    fingerprint: Mapped[bytes] = mapped_column(LargeBinary(32))
    erasure_id: Mapped[UUID] = mapped_column(unique=True)
    answer: Mapped[str] = mapped_column(Text())
    expires_at: Mapped[datetime] = mapped_column(index=True)


class Task(Base):
    """One erasure on one model."""

    __tablename__ = "tasks"
    __table_args__ = (
        UniqueConstraint("erasure_id", "model_id"),
        one_of("state", states.TaskState),
        Index("ix_tasks_model_id_state", "model_id", "state"),
    )
    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_id)
    erasure_id: Mapped[UUID] = mapped_column(ForeignKey("erasures.id"), index=True)
    model_id: Mapped[UUID] = mapped_column(ForeignKey("models.id"))
    batch_id: Mapped[UUID | None] = mapped_column(ForeignKey("batches.id"), index=True)
    state: Mapped[str] = mapped_column(String(16), default=states.TaskState.RECEIVED)
    subjects: Mapped[int]
    due_at: Mapped[datetime]
    created_at: Mapped[datetime] = mapped_column(default=now)
    completed_at: Mapped[datetime | None]
    receipts_until: Mapped[datetime | None] = mapped_column(index=True)
    """Set while receipts can be had; their salts are destroyed then, or when they are acknowledged."""
    near_matches: Mapped[int | None]
    """How many people in the data have nearly the identifier of someone who was not found; for the tenant."""


class TaskSubject(Base):
    """The only place where an identifier lives: encrypted, and gone when its task is completed.

    Whatever could be tested against a guessed identifier is encrypted too, or a keyed hash.
    """

    __tablename__ = "task_subjects"
    __table_args__ = (one_of("outcome", states.SubjectOutcome),)
    task_id: Mapped[UUID] = mapped_column(ForeignKey("tasks.id"), primary_key=True)
    ordinal: Mapped[int] = mapped_column(primary_key=True)
    identifier: Mapped[bytes | None] = mapped_column(LargeBinary())
    person: Mapped[bytes | None] = mapped_column(LargeBinary(16))
    """A keyed hash, equal for equal identifiers of a tenant, to count people; it goes with the identifier."""
    identifier_rule: Mapped[str | None] = mapped_column(String(16))
    """By which rule the commitment was made; none: over the identifier as it was sent."""
    salt: Mapped[bytes | None] = mapped_column(LargeBinary())
    """Encrypted (`Vault.seal_salt`)."""
    commitment: Mapped[bytes | None] = mapped_column(LargeBinary(32))
    leaf: Mapped[bytes | None] = mapped_column(LargeBinary(32))
    """Of the erased. It stays when salt and commitment are destroyed: the receipts of others lead past it."""
    no_data: Mapped[bytes | None] = mapped_column(LargeBinary())
    """The signed statement for someone without rows, encrypted: it holds the salt."""
    log_index: Mapped[int | None] = mapped_column(BigInteger())
    """The place of that statement in the certificate log; none: one from before they were logged."""
    outcome: Mapped[str | None] = mapped_column(String(24))


class Version(Base):
    __tablename__ = "versions"
    __table_args__ = (UniqueConstraint("model_id", "number"), one_of("state", states.VersionState))
    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_id)
    model_id: Mapped[UUID] = mapped_column(ForeignKey("models.id"))
    number: Mapped[int]
    state: Mapped[str] = mapped_column(String(16), default=states.VersionState.CURRENT)
    batch_id: Mapped[UUID | None] = mapped_column(ForeignKey("batches.id"), unique=True)
    certificate_id: Mapped[UUID | None] = mapped_column(ForeignKey("certificates.id"))
    generation: Mapped[int]
    path: Mapped[str] = mapped_column(String(500))
    sha256: Mapped[str] = mapped_column(String(64))
    size: Mapped[int] = mapped_column(BigInteger())
    created_at: Mapped[datetime] = mapped_column(default=now)
    superseded_at: Mapped[datetime | None]


class Certificate(Base):
    __tablename__ = "certificates"
    id: Mapped[UUID] = mapped_column(primary_key=True)
    model_id: Mapped[UUID] = mapped_column(ForeignKey("models.id"), index=True)
    chain_index: Mapped[int]
    mechanism: Mapped[str] = mapped_column(String(16))
    envelope: Mapped[bytes] = mapped_column(LargeBinary())
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    evidence: Mapped[bytes] = mapped_column(LargeBinary())
    model_signature: Mapped[bytes | None] = mapped_column(LargeBinary())
    log_index: Mapped[int] = mapped_column(BigInteger(), unique=True)
    created_at: Mapped[datetime] = mapped_column(default=now)
    __table_args__ = (UniqueConstraint("model_id", "chain_index"),)


class LogNode(Base):
    """Hash of a complete subtree of the Merkle log; level 0 are the leaves."""

    __tablename__ = "log_nodes"
    level: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    position: Mapped[int] = mapped_column(BigInteger(), primary_key=True, autoincrement=False)
    hash: Mapped[bytes] = mapped_column(LargeBinary(32))


class LogHead(Base):
    """The one row that holds the newest signed tree head; whoever appends locks it first."""

    __tablename__ = "log_head"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    size: Mapped[int] = mapped_column(BigInteger())
    statements: Mapped[int | None] = mapped_column(BigInteger())
    """How many leaves are "no data held" statements, which are not kept; the others are certificates."""
    note: Mapped[str] = mapped_column(String(2000))
    signed_at: Mapped[datetime] = mapped_column(default=now)


class SigningKeyRecord(Base):
    """Public halves only; valid for the places [valid_from, valid_until) of the log."""

    __tablename__ = "signing_keys"
    key_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    public_pem: Mapped[str] = mapped_column(String(1000))
    valid_from: Mapped[int] = mapped_column(BigInteger())
    valid_until: Mapped[int | None] = mapped_column(BigInteger())
    added_at: Mapped[datetime] = mapped_column(default=now)


class Lease(Base):
    __tablename__ = "leases"
    name: Mapped[str] = mapped_column(String(50), primary_key=True)
    holder: Mapped[UUID]
    expires_at: Mapped[datetime]


class WorkerSeen(Base):
    __tablename__ = "workers"
    name: Mapped[str] = mapped_column(String(200), primary_key=True)
    seen_at: Mapped[datetime]


class SignOut(Base):
    """A dashboard session that was left before it ended (seconds since 1970)."""

    __tablename__ = "sign_outs"
    nonce: Mapped[str] = mapped_column(String(24), primary_key=True)
    ends_at: Mapped[int] = mapped_column(BigInteger)

"""The tables, except those of webhooks, refused attempts and the deployment key.

State columns have check constraints. Ids are UUIDv7.
"""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Text,
    UniqueConstraint,
    false,
    literal_column,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from app.core.clock import new_id, now
from app.db import states
from app.db.key_tables import DataKeyRecord
from app.db.types import Base, one_of

_BIG = BigInteger().with_variant(Integer(), "sqlite")  # SQLite increments INTEGER keys only


class Tenant(Base):
    """An organisation. Models, API keys and requests belong to one."""

    __tablename__ = "tenants"
    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_id)
    name: Mapped[str] = mapped_column(String(100), unique=True)
    created_at: Mapped[datetime] = mapped_column(default=now)


class ApiKey(Base):
    """An API key. Only a digest of its secret is stored."""

    __tablename__ = "api_keys"
    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_id)
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"), index=True)
    name: Mapped[str] = mapped_column(String(100))
    digest: Mapped[bytes] = mapped_column(LargeBinary(32))
    scopes: Mapped[list[Any]]
    created_at: Mapped[datetime] = mapped_column(default=now)
    revoked_at: Mapped[datetime | None]


class Model(Base):
    """A registered model, with its manifest and the report of its validation."""

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
    progress: Mapped[dict[str, Any] | None]
    """How far the running registration or advice is. Null when none is running."""
    flush_requested: Mapped[bool] = mapped_column(default=False)
    created_at: Mapped[datetime] = mapped_column(default=now)


class Job(Base):
    """A piece of work for a worker.

    `token` is the fencing token of the current attempt. No other attempt may write on behalf of the job.
    """

    __tablename__ = "jobs"
    __table_args__ = (one_of("state", states.JobState), one_of("kind", states.JobKind))
    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_id)
    kind: Mapped[str] = mapped_column(String(16))
    model_id: Mapped[UUID] = mapped_column(ForeignKey("models.id"), index=True)
    state: Mapped[str] = mapped_column(String(16), default=states.JobState.WAITING, index=True)
    attempt: Mapped[int] = mapped_column(default=0)
    token: Mapped[UUID | None]
    run_after: Mapped[datetime] = mapped_column(default=now)
    due_at: Mapped[datetime | None]
    """Until when it should be done. Of a batch, the earliest deadline of its tasks."""
    queued_at: Mapped[datetime | None]
    heartbeat_at: Mapped[datetime | None]
    error: Mapped[str | None] = mapped_column(String(1000))
    failure_cause: Mapped[str | None] = mapped_column(String(24))
    """Why the latest attempt failed (`FailureCause`). `error` explains it in words."""
    errors: Mapped[int] = mapped_column(default=0, server_default="0")
    """Attempts that ended with an error of the job itself. A job has a limited number of them."""
    faults: Mapped[int] = mapped_column(default=0, server_default="0")
    """Attempts in a row that a fault of the infrastructure ended. They only lengthen the wait."""
    deaths: Mapped[int] = mapped_column(default=0, server_default="0")
    """Attempts in a row whose process died or was lost before they had reached anything lasting."""
    faulty_since: Mapped[datetime | None]
    """When the first of those faults happened."""
    delay_told_at: Mapped[datetime | None]
    """When the history of the batch last said that faults delay it."""
    created_at: Mapped[datetime] = mapped_column(default=now)
    finished_at: Mapped[datetime | None]
    traceparent: Mapped[str | None] = mapped_column(String(55))
    """The trace that its spans belong to (W3C Trace Context), if tracing is on."""


class OutboxMessage(Base):
    """A queue message that is committed with the state change it announces and sent afterwards."""

    __tablename__ = "outbox"
    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_id)
    function: Mapped[str] = mapped_column(String(100))
    job_id: Mapped[UUID] = mapped_column(ForeignKey("jobs.id"))
    token: Mapped[UUID]


class Batch(Base):
    """Requests that are carried out together on one model. It leads to at most one new version."""

    __tablename__ = "batches"
    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_id)
    model_id: Mapped[UUID] = mapped_column(ForeignKey("models.id"))
    job_id: Mapped[UUID] = mapped_column(ForeignKey("jobs.id"), unique=True)
    state: Mapped[str] = mapped_column(String(16), default=states.BatchState.SEALED, index=True)
    sealed_because: Mapped[str] = mapped_column(String(16))
    policy: Mapped[dict[str, Any]]
    step: Mapped[str | None] = mapped_column(String(16))
    subjects: Mapped[int]
    records: Mapped[int | None]
    shift: Mapped[dict[str, Any] | None]
    progress: Mapped[dict[str, Any] | None]
    attempts_started: Mapped[int] = mapped_column(default=0, server_default="0")
    """How often an attempt has begun to run, over all retries.

    The failure probability of a certificate is divided among the attempts, so this number must not depend on
    the events that are shown to people and may be deleted.
    """
    rows_examined: Mapped[bool] = mapped_column(default=False, server_default=false())
    """Whether an attempt since the last retry has computed on the training rows."""
    cancelled: Mapped[bool] = mapped_column(default=False, server_default=false())
    """Whether the owner cancelled the batch. A retry clears it."""
    retry_requested: Mapped[bool] = mapped_column(default=False, server_default=false())
    """Whether the failed batch is to be retried as soon as the model has no other open batch."""
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


class DrawRecord(Base):
    """The record of a batch's draw, kept from the moment of the draw until it is published or discarded.

    A draw is published as it is or destroyed, and never made again. `decision` is what the owner of a held
    batch decided, until a worker has carried it out.
    """

    __tablename__ = "held_draws"
    __table_args__ = (one_of("decision", states.Decision),)
    batch_id: Mapped[UUID] = mapped_column(ForeignKey("batches.id"), primary_key=True)
    draft: Mapped[dict[str, Any]]
    evidence: Mapped[bytes] = mapped_column(LargeBinary())
    payload: Mapped[bytes] = mapped_column(LargeBinary())
    decision: Mapped[str | None] = mapped_column(String(8))


class BatchEvent(Base):
    """An entry in the history of a batch that the API shows (`EventKind`)."""

    __tablename__ = "batch_events"
    id: Mapped[int] = mapped_column(_BIG, primary_key=True, autoincrement=True)
    batch_id: Mapped[UUID] = mapped_column(ForeignKey("batches.id"), index=True)
    at: Mapped[datetime] = mapped_column(default=now)
    kind: Mapped[str] = mapped_column(String(32))
    data: Mapped[dict[str, Any]]


class DatasetPart(Base):
    """A Parquet file of a model's own copy of its data.

    It belongs to the dataset generations `first_generation` to `last_generation`. A part without a first
    generation is staged: it was sent to a ready model and waits to be appended.
    """

    __tablename__ = "dataset_parts"
    __table_args__ = (one_of("role", states.PartRole),)
    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_id)
    model_id: Mapped[UUID] = mapped_column(ForeignKey("models.id"), index=True)
    name: Mapped[str] = mapped_column(String(32))
    role: Mapped[str] = mapped_column(String(16), default=states.PartRole.TRAIN)
    path: Mapped[str] = mapped_column(String(500), unique=True)
    rows: Mapped[int | None]
    sha256: Mapped[str] = mapped_column(String(64))
    size: Mapped[int] = mapped_column(BigInteger())
    first_generation: Mapped[int | None]
    last_generation: Mapped[int | None]
    features_path: Mapped[str | None] = mapped_column(String(500), unique=True, index=True)
    """The features file: the same rows after the model's representation. Null without a representation."""
    features_sha256: Mapped[str | None] = mapped_column(String(64))
    features_size: Mapped[int | None] = mapped_column(BigInteger())
    features_of: Mapped[str | None] = mapped_column(String(64))
    """The digest of the representation that the features were computed with."""

    @property
    def rows_path(self) -> str:
        """The file that the model is fitted on: the features file, or the part itself."""
        return self.path if self.features_path is None else self.features_path

    @property
    def rows_sha256(self) -> str:
        """The digest of the file that the model is fitted on."""
        return self.sha256 if self.features_sha256 is None else self.features_sha256


class ModelFile(Base):
    """A file of a model: uploaded weights until they are registered, the anchor, graph and tokenizer."""

    __tablename__ = "model_files"
    __table_args__ = (one_of("kind", states.FileKind),)
    model_id: Mapped[UUID] = mapped_column(ForeignKey("models.id"), primary_key=True)
    kind: Mapped[str] = mapped_column(String(16), primary_key=True)
    path: Mapped[str] = mapped_column(String(500), unique=True)
    sha256: Mapped[str] = mapped_column(String(64))
    size: Mapped[int] = mapped_column(BigInteger())


class Upload(Base):
    """A file that is being uploaded. Its row is added before its bytes, so no stored file is ever unknown."""

    __tablename__ = "uploads"
    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_id)
    model_id: Mapped[UUID] = mapped_column(ForeignKey("models.id"), index=True)
    target: Mapped[str] = mapped_column(String(64))
    total: Mapped[int | None] = mapped_column(BigInteger())
    received: Mapped[int] = mapped_column(BigInteger(), default=0)
    touched_at: Mapped[datetime] = mapped_column(default=now)


class LibraryRepresentation(Base):
    """A representation that all models of this installation may use by name. It is never changed."""

    __tablename__ = "library_representations"
    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_id)
    name: Mapped[str] = mapped_column(String(63), unique=True)
    declaration: Mapped[dict[str, Any]]
    graph_path: Mapped[str] = mapped_column(String(500), unique=True)
    graph_sha256: Mapped[str] = mapped_column(String(64))
    graph_size: Mapped[int] = mapped_column(BigInteger())
    tokenizer_path: Mapped[str | None] = mapped_column(String(500), unique=True)
    tokenizer_sha256: Mapped[str | None] = mapped_column(String(64))
    tokenizer_size: Mapped[int | None] = mapped_column(BigInteger())
    created_at: Mapped[datetime] = mapped_column(default=now)


class DatasetImport(Base):
    """A file that a worker will copy from another storage location. Only dataset parts have a name."""

    __tablename__ = "dataset_imports"
    __table_args__ = (UniqueConstraint("model_id", "role", "name"), one_of("role", states.ImportRole))
    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_id)
    model_id: Mapped[UUID] = mapped_column(ForeignKey("models.id"))
    role: Mapped[str] = mapped_column(String(16))
    name: Mapped[str] = mapped_column(String(32))
    uri: Mapped[str] = mapped_column(String(1000))


class Suppression(Base):
    """The keyed hash of an erased person, whose rows are filtered from data that is appended later.

    It is kept only if the model's policy asks for it.
    """

    __tablename__ = "suppressions"
    model_id: Mapped[UUID] = mapped_column(ForeignKey("models.id"), primary_key=True)
    subject_hash: Mapped[bytes] = mapped_column(LargeBinary(32), primary_key=True)


class Report(Base):
    """An evaluation, a replay audit or a membership test of one version, or advice on the model.

    Its figures carry no noise, so they are for the team that owns the model only.
    """

    __tablename__ = "reports"
    __table_args__ = (one_of("kind", states.ReportKind),)
    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_id)
    kind: Mapped[str] = mapped_column(String(16))
    model_id: Mapped[UUID] = mapped_column(ForeignKey("models.id"), index=True)
    certificate_id: Mapped[UUID | None] = mapped_column(ForeignKey("certificates.id"), index=True)
    version: Mapped[int]
    job_id: Mapped[UUID] = mapped_column(ForeignKey("jobs.id"), unique=True)
    result: Mapped[dict[str, Any] | None]
    error: Mapped[str | None] = mapped_column(String(1000))
    created_at: Mapped[datetime] = mapped_column(default=now)
    completed_at: Mapped[datetime | None]
    deleted_at: Mapped[datetime | None]
    """When its figures were deleted, because the policy of the model keeps them no longer."""


class Erasure(Base):
    """A request to erase one or more people, with its legal deadline. It has one task per model."""

    __tablename__ = "erasures"
    __table_args__ = (
        Index("ix_erasures_tenant_id_id", "tenant_id", "id"),
        Index("ix_erasures_tenant_id_reference_id", "tenant_id", "reference", "id"),
    )
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
    withdrawal_reason: Mapped[str | None] = mapped_column(String(200))
    created_at: Mapped[datetime] = mapped_column(default=now)
    traceparent: Mapped[str | None] = mapped_column(String(55))


class IdempotencyKey(Base):
    """The answer to a request with an `Idempotency-Key`. Key and payload are stored as keyed hashes only.

    The hash of the payload is under a data key that is destroyed when the answers of its day have expired.
    """

    __tablename__ = "idempotency_keys"
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    key_hash: Mapped[bytes] = mapped_column(LargeBinary(32), primary_key=True)
    fingerprint: Mapped[bytes] = mapped_column(LargeBinary(32))
    hash_key_id: Mapped[UUID | None] = mapped_column(ForeignKey(DataKeyRecord.id), index=True)
    """The data key of the fingerprint. Null: an earlier version hashed it under the deployment key."""
    erasure_id: Mapped[UUID] = mapped_column(unique=True)
    answer: Mapped[str] = mapped_column(Text())
    expires_at: Mapped[datetime] = mapped_column(index=True)


def _open_task_index(name: str, *columns: str) -> Index:
    """Return an index of the tasks that are not fulfilled, which remain few however many have ended."""
    is_open = text("state NOT IN ('completed', 'withdrawn')")
    return Index(name, *columns, sqlite_where=is_open, postgresql_where=is_open)


def _data_key_index(column: str) -> Index:
    """Return an index of the tasks that need a data key. Without it, deleting a key would read all tasks."""
    needs = text(f"{column} IS NOT NULL")
    return Index(f"ix_tasks_{column}", column, sqlite_where=needs, postgresql_where=needs)


class Task(Base):
    """One erasure on one model."""

    __tablename__ = "tasks"
    __table_args__ = (
        UniqueConstraint("erasure_id", "model_id"),
        one_of("state", states.TaskState),
        Index("ix_tasks_model_id_state", "model_id", "state"),
        _open_task_index("ix_tasks_open_due_at", "due_at", "erasure_id"),
        _open_task_index("ix_tasks_open_model_id", "model_id", "state", "due_at"),
        _data_key_index("subject_key_id"),
        _data_key_index("receipt_key_id"),
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
    """Until when receipts can be fetched. Their salts are destroyed then, or when they are acknowledged."""
    near_matches: Mapped[int | None]
    """How many people in the data have an identifier close to one that was not found. Shown to the tenant."""
    subject_key: Mapped[bytes | None] = mapped_column(LargeBinary())
    """The key of the task's identifiers, encrypted under a data key. Deleted with them."""
    subject_key_id: Mapped[UUID | None] = mapped_column(ForeignKey(DataKeyRecord.id))
    receipt_key: Mapped[bytes | None] = mapped_column(LargeBinary())
    """The key of the task's salts and statements, encrypted under a data key. Deleted with them."""
    receipt_key_id: Mapped[UUID | None] = mapped_column(ForeignKey(DataKeyRecord.id))


def task_is_open() -> ColumnElement[bool]:
    """Return the condition that a task is not fulfilled, in the words of the indexes of open tasks.

    The states are literals: a database uses a partial index only if it sees that the condition matches.
    """
    ended = (states.TaskState.COMPLETED, states.TaskState.WITHDRAWN)
    return Task.state.not_in([literal_column(f"'{state}'") for state in ended])


class TaskSubject(Base):
    """One person of a task. Only this table holds identifiers, encrypted, until the task is completed.

    Everything else that could confirm a guessed identifier is encrypted or a keyed hash as well.
    """

    __tablename__ = "task_subjects"
    __table_args__ = (one_of("outcome", states.SubjectOutcome),)
    task_id: Mapped[UUID] = mapped_column(ForeignKey("tasks.id"), primary_key=True)
    ordinal: Mapped[int] = mapped_column(primary_key=True)
    identifier: Mapped[bytes | None] = mapped_column(LargeBinary())
    person: Mapped[bytes | None] = mapped_column(LargeBinary(16))
    """A hash to count people, equal for equal identifiers under one data key. Deleted with the identifier."""
    identifier_rule: Mapped[str | None] = mapped_column(String(16))
    """The normalisation rule of the commitment. Null: it is over the identifier as it was sent."""
    salt: Mapped[bytes | None] = mapped_column(LargeBinary())
    """The salt of the commitment, encrypted (`RowCipher.seal_salt`)."""
    commitment: Mapped[bytes | None] = mapped_column(LargeBinary(32))
    leaf: Mapped[bytes | None] = mapped_column(LargeBinary(32))
    """The Merkle leaf of an erased person. It outlives salt and commitment: other receipts' proofs use it."""
    no_data: Mapped[bytes | None] = mapped_column(LargeBinary())
    """The signed "no data held" statement for someone without rows, encrypted because it holds the salt."""
    log_index: Mapped[int | None] = mapped_column(BigInteger())
    """The statement's index in the certificate log. Null for statements from before they were logged."""
    outcome: Mapped[str | None] = mapped_column(String(24))


class Version(Base):
    """A published version of a model. `path` is where its weights are stored."""

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
    """A signed certificate, its evidence, and its index in the certificate log."""

    __tablename__ = "certificates"
    id: Mapped[UUID] = mapped_column(primary_key=True)
    model_id: Mapped[UUID] = mapped_column(ForeignKey("models.id"), index=True)
    chain_index: Mapped[int]
    mechanism: Mapped[str] = mapped_column(String(16), index=True)
    envelope: Mapped[bytes] = mapped_column(LargeBinary())
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    evidence: Mapped[bytes] = mapped_column(LargeBinary())
    """Empty once it is deleted. `app.db.retention.read_evidence` reads it."""
    evidence_deleted_at: Mapped[datetime | None]
    model_signature: Mapped[bytes | None] = mapped_column(LargeBinary())
    log_index: Mapped[int] = mapped_column(BigInteger(), unique=True)
    created_at: Mapped[datetime] = mapped_column(default=now)
    __table_args__ = (UniqueConstraint("model_id", "chain_index"),)


class LogNode(Base):
    """The hash of a complete subtree of the certificate log. Level 0 holds the leaves."""

    __tablename__ = "log_nodes"
    level: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    position: Mapped[int] = mapped_column(BigInteger(), primary_key=True, autoincrement=False)
    hash: Mapped[bytes] = mapped_column(LargeBinary(32))


class LogHead(Base):
    """The newest signed tree head of the certificate log, in one row. Lock it before appending a leaf."""

    __tablename__ = "log_head"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    size: Mapped[int] = mapped_column(BigInteger())
    statements: Mapped[int | None] = mapped_column(BigInteger())
    """How many leaves are "no data held" statements or heads of audit logs. All others are certificates."""
    tree_head: Mapped[str] = mapped_column("note", String(2000))
    signed_at: Mapped[datetime] = mapped_column(default=now)


class SigningKeyRecord(Base):
    """The public half of a signing key, valid for the indices [valid_from, valid_until) of the log."""

    __tablename__ = "signing_keys"
    key_id: Mapped[str] = mapped_column(String(64), primary_key=True)
    public_pem: Mapped[str] = mapped_column(String(1000))
    valid_from: Mapped[int] = mapped_column(BigInteger())
    valid_until: Mapped[int | None] = mapped_column(BigInteger())
    added_at: Mapped[datetime] = mapped_column(default=now)


class Lease(Base):
    """A lease that lets one of several processes act at a time."""

    __tablename__ = "leases"
    name: Mapped[str] = mapped_column(String(50), primary_key=True)
    holder: Mapped[UUID]
    expires_at: Mapped[datetime]


class WorkerSeen(Base):
    """When a worker was last seen alive."""

    __tablename__ = "workers"
    name: Mapped[str] = mapped_column(String(200), primary_key=True)
    seen_at: Mapped[datetime]


class PersonSession(Base):
    """A dashboard session of someone who signed in through the identity provider.

    `subject` is a keyed pseudonym. `groups` are those that the settings mention: what they allow is looked up
    in the settings at every request. `ends_at` is in seconds since 1970.
    """

    __tablename__ = "person_sessions"
    nonce: Mapped[str] = mapped_column(String(24), primary_key=True)
    subject: Mapped[str] = mapped_column(String(40))
    name: Mapped[str] = mapped_column(String(200))
    groups: Mapped[list[Any]]
    ends_at: Mapped[int] = mapped_column(BigInteger)


class SignOut(Base):
    """A dashboard session that its user ended early. `ends_at` is in seconds since 1970."""

    __tablename__ = "sign_outs"
    nonce: Mapped[str] = mapped_column(String(24), primary_key=True)
    ends_at: Mapped[int] = mapped_column(BigInteger)

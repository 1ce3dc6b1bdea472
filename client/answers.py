"""What the service answers. States are plain texts, and unknown fields are kept: servers may be newer."""

from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field


class Shown(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow", populate_by_name=True)


class Policy(Shown):
    epsilon: float
    delta: float
    target_distance: float
    lifetime_epsilon: float
    batch_subjects: int
    batch_age_seconds: float
    min_batch_subjects: int | None = None
    method: str
    fallback: str


class Manifest(Shown):
    family: str
    lam: float = Field(alias="lambda")
    policy: Policy
    width: int | None = None
    classes: int | None = None


class Model(Shown):
    id: UUID
    name: str
    state: str
    manifest: Manifest
    sigma: float
    generation: int
    reasons: tuple[str, ...]
    report: dict[str, Any] | None
    waiting_subjects: int
    created_at: datetime
    assurance: str | None = None
    assurance_notes: tuple[str, ...] = ()


class Holding(Shown):
    part: str
    role: str
    state: str
    rows: int | None
    size: int | None


class Transfer(Shown):
    """How much of an uploaded file is at the server."""

    complete: bool
    received: int
    total: int | None
    sha256: str | None


class Uploaded(Shown):
    sha256: str
    size: int


class Appending(Shown):
    batch_id: UUID


class Flushed(Shown):
    waiting_subjects: int


class Task(Shown):
    """One erasure on one model."""

    model: str
    state: str
    batch_id: UUID | None
    version: int | None
    certificate_id: UUID | None
    outcomes: dict[str, int]
    near_matches: int = 0
    notice: str | None = None

    @property
    def ended(self) -> bool:
        return self.state in ("completed", "failed", "withdrawn")


class Erasure(Shown):
    id: UUID
    state: str
    subjects: int
    reference: str | None
    reason: str | None
    jurisdiction: str | None
    received_at: datetime
    due_at: datetime
    extension_reason: str | None
    overdue: bool
    tasks: tuple[Task, ...]
    warnings: tuple[str, ...] = ()

    @property
    def ended(self) -> bool:
        return all(task.ended for task in self.tasks)


class Receipt(Shown):
    """`receipt` is the document for the data subject; `lethe verify --receipt` reads it."""

    model: str
    ordinal: int
    outcome: str
    certificate_id: UUID | None
    receipt: dict[str, Any] | None


class Acknowledged(Shown):
    destroyed: int


class Batch(Shown):
    id: UUID
    model: str
    state: str
    sealed_because: str
    step: str | None
    subjects: int
    records: int | None
    attempt: int
    waiting_for: str | None
    shift: dict[str, float | None] | None
    progress: dict[str, Any] | None
    held_reason: str | None
    error: str | None
    version: int | None
    certificate_id: UUID | None
    sealed_at: datetime
    completed_at: datetime | None
    warnings: tuple[str, ...] = ()

    @property
    def ended(self) -> bool:
        return self.state in ("completed", "failed")


class Event(Shown):
    """Something that happened to a batch; `id` is where to resume."""

    id: str
    kind: str
    data: dict[str, Any]


class Progress(Shown):
    """An erasure and the batches it is in, as far as the key may see them."""

    erasure: Erasure
    batches: tuple[Batch, ...]


class Version(Shown):
    number: int
    state: str
    sha256: str
    size: int
    certificate_id: UUID | None
    batch_id: UUID | None
    created_at: datetime
    superseded_at: datetime | None


class Certificate(Shown):
    id: UUID
    digest: str
    mechanism: str
    chain_index: int
    log_index: int
    created_at: datetime


class InclusionProof(Shown):
    index: int
    size: int
    path: tuple[str, ...]
    checkpoint: str


class ConsistencyProof(Shown):
    old_size: int
    new_size: int
    path: tuple[str, ...]
    checkpoint: str


class LedgerEntry(Shown):
    certificate_id: UUID
    version: int
    mechanism: str
    shift: float
    delta: float
    running_shift: float
    running_epsilon: float | None
    subjects_shift: float
    subjects_epsilon: float | None
    issued_at: datetime


class Ledger(Shown):
    model: str
    delta: float
    lifetime_epsilon: float
    running_shift: float
    running_epsilon: float | None
    remaining_epsilon: float | None
    releases_left: int
    entries: tuple[LedgerEntry, ...]


class Key(Shown):
    id: UUID
    name: str
    scopes: tuple[str, ...]
    created_at: datetime
    revoked_at: datetime | None


class NewKey(Key):
    """`secret` is shown once."""

    secret: str = Field(repr=False)

"""Erasures, their batches and their receipts."""

from datetime import datetime
from typing import Any
from uuid import UUID

from lethe.client.responses.base import Response


class Task(Response):
    """The part of an erasure that concerns one model."""

    model: str
    state: str
    batch_id: UUID | None
    on_hold: bool
    decisions: tuple[str, ...]
    completed_at: datetime | None
    version: int | None
    certificate_id: UUID | None
    outcomes: dict[str, int]
    near_matches: int
    notice: str | None

    @property
    def ended(self) -> bool:
        """Whether the task is completed, failed or withdrawn."""
        return self.state in ("completed", "failed", "withdrawn")


class Erasure(Response):
    """A request to erase people from one or more models, with one task per model.

    `summary` is the state in words. It begins with "On hold, needs a decision" if a batch is on hold.
    """

    id: UUID
    state: str
    summary: str
    subjects: int
    reference: str | None
    reason: str | None
    jurisdiction: str | None
    received_at: datetime
    due_at: datetime
    extension_reason: str | None
    withdrawal_reason: str | None
    completed_at: datetime | None
    overdue: bool
    late_days: int
    tasks: tuple[Task, ...]
    warnings: tuple[str, ...]

    @property
    def ended(self) -> bool:
        """Whether every task has ended."""
        return all(task.ended for task in self.tasks)


class Receipt(Response):
    """What one data subject receives from one model.

    `receipt` is the document to hand out. Save it as a file to check it with `lethe verify --receipt`.
    """

    model: str
    ordinal: int
    outcome: str
    certificate_id: UUID | None
    receipt: dict[str, Any] | None


class ReceiptAcknowledgement(Response):
    """How many receipts can no longer be fetched, because their salts were destroyed."""

    destroyed: int


class DecisionMade(Response):
    """The latest decision about a batch: who made it, why and when."""

    decision: str
    by: str | None
    reason: str | None
    at: datetime


class Batch(Response):
    """People who are erased from one model together.

    `summary` is the state in words, and `decisions` what can be decided now, such as "approve".
    """

    id: UUID
    model: str
    state: str
    summary: str
    decisions: tuple[str, ...]
    decided: DecisionMade | None
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
    warnings: tuple[str, ...]
    version: int | None
    certificate_id: UUID | None
    sealed_at: datetime
    completed_at: datetime | None

    @property
    def ended(self) -> bool:
        """Whether the batch is completed or failed. A held batch has not ended."""
        return self.state in ("completed", "failed")


class Event(Response):
    """Something that happened to a batch. Pass `id` as `after` to read the events that follow."""

    id: str
    kind: str
    data: dict[str, Any]


class ErasureProgress(Response):
    """An erasure and the batches it is in. `batches` is empty when the API key may not read batches."""

    erasure: Erasure
    batches: tuple[Batch, ...]

    @property
    def state(self) -> str:
        """The erasure's state and, if known, the states of its batches, such as "received, batch running"."""
        return ", ".join([self.erasure.state, *(f"batch {batch.state}" for batch in self.batches)])

"""Response schema of batches."""

from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from app.db.states import BatchDecision, BatchState, HeldReason
from app.gateway.reasons import ReasonText


class DecisionReason(BaseModel):
    """Why someone decides as they do. It may be left out."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"reason": "the holdout score is good enough"}]}
    )

    reason: ReasonText | None = Field(
        None, description="Why you decide so. It becomes part of the batch's history. Do not name a person."
    )


class DecisionMade(BaseModel):
    """The latest decision about a batch."""

    decision: BatchDecision = Field(description="What was decided.")
    by: str | None = Field(description="The name of the API key or the person who decided.")
    reason: str | None = Field(description="Why, in their words. Null if they gave no reason.")
    at: datetime = Field(description="When it was decided.")


class BatchView(BaseModel):
    """A batch: erasures of one model that are processed together, or an append."""

    id: UUID
    model: str = Field(description="The name of the model.")
    state: BatchState = Field(description="`held` means that the batch is on hold until someone decides.")
    summary: str = Field(
        description="The state in words: its name, and what it means. For a batch on hold, it says why."
    )
    decisions: list[BatchDecision] = Field(
        description="What can be decided now: `POST /v1/batches/{batch_id}/` and one of these words."
    )
    decided: DecisionMade | None = Field(description="The latest decision. Null if there was none.")
    sealed_because: str = Field(
        description="Why the batch was sealed: `count`, `age`, `deadline`, `flush` or `append`."
    )
    step: str | None = Field(description="What the running attempt is doing.")
    subjects: int = Field(description="The number of people in the batch.")
    records: int | None = Field(
        description="The number of training rows that belong to these people. For fewer than 20 people only "
        "keys with the scope `models:admin` see it."
    )
    attempt: int = Field(description="How many attempts have started.")
    waiting_for: str | None = Field(description="What the batch is waiting for. Null if it is not waiting.")
    shift: dict[str, float | None] | None = Field(
        description="The class drift: KL(R‖D) and KL(D‖R) between the class mix before (D) and after (R). "
        "Known from 20 people on, and only for keys with the scope `models:admin`. Deleted together with the "
        "evidence of the certificate."
    )
    progress: dict[str, Any] | None = Field(
        description="The progress of the solver: step, gradient_norm, distance and its target, products, "
        "passes, seconds. percent and eta_seconds are estimates, and null while there is no basis for one."
    )
    held_reason: HeldReason | None = Field(description="Why the batch is on hold. Null if it is not.")
    error: str | None = Field(description="Why the last attempt failed. Null if it did not.")
    warnings: list[str] = Field(description="What the model's team should know about the batch.")
    version: int | None = Field(description="The version that the batch published.")
    certificate_id: UUID | None = Field(description="The certificate of that version.")
    sealed_at: datetime
    completed_at: datetime | None = Field(description="When the batch was completed. Null until then.")

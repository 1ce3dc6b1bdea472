from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import BaseModel, Field

from app.db.states import BatchState, HeldReason


class BatchShown(BaseModel):
    id: UUID
    model: str
    state: BatchState
    sealed_because: str
    step: str | None
    subjects: int
    records: int | None = Field(
        description="Training rows that belong to the subjects. Of fewer than 20 people they are told to the "
        "model's own team alone, with the scope `models:admin`."
    )
    attempt: int
    waiting_for: str | None = Field(description="Why nothing happens at the moment, if nothing does.")
    shift: dict[str, float | None] | None = Field(
        description="KL(R‖D) and KL(D‖R) of the class mix; from 20 subjects on, and for the model's own team "
        "alone, with the scope `models:admin`."
    )
    progress: dict[str, Any] | None = Field(
        description="Of the solve: step, gradient_norm, distance and its target, products, passes, seconds; "
        "percent and eta_seconds are estimates, null while there is nothing to tell them from."
    )
    held_reason: HeldReason | None
    error: str | None
    warnings: list[str] = Field(description="What its owner should know of it, as sentences.")
    version: int | None
    certificate_id: UUID | None
    sealed_at: datetime
    completed_at: datetime | None

from datetime import datetime
from uuid import UUID

from pydantic import BaseModel, Field


class LedgerEntry(BaseModel):
    """One release; a discarded draw is one too."""

    certificate_id: UUID
    version: int
    mechanism: str
    shift: float = Field(description="s = Δ*/σ of this release; 0 for a retraining.")
    delta: float = Field(description="δ at which this entry's ε are stated.")
    running_shift: float = Field(description="√Σs² since the last retraining.")
    running_epsilon: float | None = Field(description="ε of that sum at δ; null when an estimate is in it.")
    subjects_shift: float = Field(description="√Σs² of the releases that concern those erased here.")
    subjects_epsilon: float | None = Field(description="ε of that sum: what those erased here have today.")
    issued_at: datetime


class Ledger(BaseModel):
    model: str
    delta: float
    lifetime_epsilon: float = Field(description="The cap on the running ε.")
    running_shift: float
    running_epsilon: float | None
    remaining_epsilon: float | None = Field(description="Cap less running ε; ε does not add up linearly.")
    releases_left: int | None = Field(
        description="Further releases under the present policy before it must retrain; null where it always "
        "does."
    )
    entries: list[LedgerEntry] = Field(description="Oldest first.")

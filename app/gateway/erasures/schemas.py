from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from app.db.states import SubjectOutcome, TaskState
from app.models.schemas import NAME

NO_CONTROLS = r"^[^\x00-\x1f\x7f]+$"
SubjectId = Annotated[str, Field(min_length=1, max_length=256, pattern=NO_CONTROLS)]
Short = Annotated[str, Field(min_length=1, max_length=200, pattern=NO_CONTROLS)]

EXAMPLE: dict[str, Any] = {
    "subjects": ["patient-0042"],
    "models": ["digits"],
    "reference": "case-17",
    "jurisdiction": "GDPR",
}


class ErasureDetails(BaseModel):
    """What is said about a request beside whom it concerns."""

    model_config = ConfigDict(extra="forbid")

    models: list[Annotated[str, Field(pattern=NAME)]] | None = Field(
        None, min_length=1, max_length=1000, description="Omitted: every model of the tenant."
    )
    reference: Short | None = Field(
        None, description="Your own case number; never an identifier of the person."
    )
    reason: Short | None = None
    jurisdiction: Annotated[str, Field(min_length=1, max_length=50, pattern=NO_CONTROLS)] | None = None
    received_at: AwareDatetime | None = Field(None, description="When the person asked; omitted: now.")


class ErasureRequest(ErasureDetails):
    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})

    subjects: list[SubjectId] = Field(
        min_length=1,
        max_length=10_000,
        description="Identifiers as in the column subject_id of the datasets. They are compared character "
        "by character after Unicode normalisation (NFC); case and spaces count.",
    )


class Extension(BaseModel):
    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"reason": "complex request, GDPR art. 12(3)"}]}
    )

    reason: Short


class TaskShown(BaseModel):
    model: str
    state: TaskState
    batch_id: UUID | None
    version: int | None = Field(description="The version from which the subjects are erased.")
    certificate_id: UUID | None
    outcomes: dict[SubjectOutcome, int] = Field(description="How many subjects ended how.")
    near_matches: int = Field(
        description="People in this model's data whose identifier differs from that of someone who was not "
        "found only in case, spacing or Unicode form. Nothing of theirs was touched."
    )
    notice: str | None = Field(description="What to do about near matches, in a sentence.")


class ErasureShown(BaseModel):
    id: UUID
    state: TaskState
    subjects: int
    reference: str | None
    reason: str | None
    jurisdiction: str | None
    received_at: datetime
    due_at: datetime
    extension_reason: str | None = Field(description="Why the deadline was extended, if it was.")
    overdue: bool
    tasks: list[TaskShown]
    warnings: list[str] = Field(
        description="In the answer to the request alone: identifiers that look mistyped. They were accepted."
    )

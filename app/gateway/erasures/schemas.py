"""Request and response schemas of erasures."""

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from app.db.states import BatchDecision, TaskOutcome, TaskState
from app.gateway.batches.schemas import BatchView
from app.gateway.models.schemas import NAME
from app.gateway.reasons import ReasonText
from lethe.certificate.validation import PLAIN_TEXT
from lethe.identifiers import MAX_CHARACTERS, NO_CONTROLS

SubjectId = Annotated[str, Field(min_length=1, max_length=MAX_CHARACTERS, pattern=NO_CONTROLS)]
Short = ReasonText

EXAMPLE: dict[str, Any] = {
    "subjects": ["patient-0042"],
    "models": ["digits"],
    "reference": "case-17",
    "jurisdiction": "GDPR",
}


class ErasureDetails(BaseModel):
    """Everything about an erasure request except whom it concerns."""

    model_config = ConfigDict(extra="forbid")

    models: list[Annotated[str, Field(pattern=NAME)]] | None = Field(
        None,
        min_length=1,
        max_length=1000,
        description="The models to erase the subjects from. Omit it for every model of the tenant that is "
        "not retired. The task on one that is not registered ends at once, and says so.",
    )
    reference: Short | None = Field(
        None, description="Your own case number. Do not use an identifier of the person."
    )
    reason: Short | None = Field(None, description="Why the request was made.")
    jurisdiction: Annotated[str, Field(min_length=1, max_length=50, pattern=PLAIN_TEXT)] | None = Field(
        None, description="The law that applies, for example `GDPR`."
    )
    received_at: AwareDatetime | None = Field(
        None, description="When the person asked. The deadline counts from here. Omit it for now."
    )


class ErasureRequest(ErasureDetails):
    """A request to erase people from models."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})

    subjects: list[SubjectId] = Field(
        min_length=1,
        max_length=10_000,
        description="The people to erase, by their identifiers in the datasets' `subject_id` column. "
        "Identifiers are compared character by character after Unicode normalisation (NFC). Case and spaces "
        "count.",
    )


class Extension(BaseModel):
    """An extension of the deadline."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"reason": "complex request, GDPR art. 12(3)"}]}
    )

    reason: Short = Field(description="Why the request needs more time.")


class TaskView(BaseModel):
    """The part of an erasure that concerns one model."""

    model: str = Field(description="The name of the model.")
    state: TaskState = Field(description="The state of the erasure on this model.")
    batch_id: UUID | None = Field(description="The batch that contains the task. Null until it is sealed.")
    on_hold: bool = Field(description="Whether that batch is on hold until someone decides.")
    decisions: list[BatchDecision] = Field(
        description="What can be decided about a batch on hold: `POST /v1/batches/{batch_id}/` and one of "
        "these words. Empty if the batch is not on hold."
    )
    completed_at: datetime | None = Field(description="When the task was completed. Null until then.")
    version: int | None = Field(description="The first version of the model without the subjects' data.")
    certificate_id: UUID | None = Field(description="The certificate of that version.")
    outcomes: dict[TaskOutcome, int] = Field(
        description="How many subjects ended with each outcome. Empty until the task is completed: the "
        "version is published and the old data deleted."
    )
    near_matches: int = Field(
        description="How many people in this model's data have an identifier that differs only in case, "
        "spacing or Unicode form from that of a subject who was not found. Their data was not changed. "
        "0 until the task is completed."
    )
    notice: str | None = Field(
        description="What to do about near matches, or about a model that was not registered. Null if there "
        "is nothing to do."
    )


class ErasureView(BaseModel):
    """An erasure request and its progress."""

    id: UUID
    state: TaskState = Field(
        description="The state of the least advanced task. `failed` if any task failed, `completed` if "
        "there is none."
    )
    summary: str = Field(
        description="The state in words: its name, and what it means. It begins with `On hold, needs a "
        "decision` if a batch of the request is on hold."
    )
    subjects: int = Field(description="The number of distinct people in the request.")
    reference: str | None = Field(description="Your own case number.")
    reason: str | None = Field(description="Why the request was made.")
    jurisdiction: str | None = Field(description="The law that applies.")
    received_at: datetime = Field(description="When the person asked.")
    due_at: datetime = Field(
        description="The deadline: one calendar month after `received_at`, unless extended."
    )
    extension_reason: str | None = Field(description="Why the deadline was extended. Null if it was not.")
    withdrawal_reason: str | None = Field(
        description="Why the request was withdrawn. Null if it was not, or if no reason was given."
    )
    completed_at: datetime | None = Field(
        description="When the last task was completed. Null while the request is open or if it was withdrawn."
    )
    overdue: bool = Field(description="Whether the request is still open after its deadline.")
    late_days: int = Field(
        description="How many days after the deadline the request was completed, or how many have passed if "
        "it is still open. A day that has begun counts. 0 if it is not late."
    )
    tasks: list[TaskView] = Field(description="One task per model.")
    warnings: list[str] = Field(
        description="Identifiers that look mistyped, by count and position. They were accepted as sent. "
        "Only in the answer to the request itself."
    )


class ErasureProgress(BaseModel):
    """An erasure and the batches that its open tasks are in."""

    erasure: ErasureView
    batches: list[BatchView] = Field(
        description="The batches of the open tasks. Empty if the API key may not read models."
    )

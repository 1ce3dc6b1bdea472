from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from app.db.webhooks import DeliveryState, EventType
from app.webhooks.sending import Failure

TargetUrl = Annotated[
    str,
    Field(
        min_length=1,
        max_length=2000,
        pattern=r"^https?://[!-~]+$",
        description="Where messages are posted: https, a public address, no credentials in it.",
    ),
]
Types = Annotated[
    list[EventType],
    Field(max_length=len(EventType), description="Which events are sent; empty: all of them."),
]
Description = Annotated[
    str,
    Field(
        max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$", description="For your own use; never about a person."
    ),
]


class WebhookRequest(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "url": "https://hooks.example.com/lethe",
                    "event_types": ["erasure.completed", "batch.held"],
                    "description": "case management",
                }
            ]
        },
    )

    url: TargetUrl
    event_types: Types = []
    description: Description = ""
    enabled: bool = True


class WebhookPatch(BaseModel):
    """Members to change; the others stay as they are."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"enabled": True}]})

    url: TargetUrl | None = None
    event_types: Types | None = None
    description: Description | None = None
    enabled: bool | None = Field(
        None, description="While false nothing is sent and nothing new is kept; what waited goes on later."
    )


class Rotation(BaseModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"overlap_hours": 24}]})

    overlap_hours: float = Field(
        24.0, ge=0, le=168, description="How long messages are signed with the old secret as well."
    )


class WebhookShown(BaseModel):
    id: UUID
    url: str
    event_types: list[EventType]
    description: str
    enabled: bool
    disabled_reason: str | None = Field(
        description="`gone`: it answered 410, and was disabled. Null when it was you."
    )
    old_secret_until: datetime | None = Field(
        description="Until when messages are signed with the old secret as well."
    )
    created_at: datetime


class NewWebhook(WebhookShown):
    secret: str = Field(description="Shown once. Verify the signature of every message with it.")


class DeliveryShown(BaseModel):
    id: UUID
    message_id: str = Field(description="The header `webhook-id`: the same at every attempt and replay.")
    state: DeliveryState
    attempts: int
    status_code: int | None = Field(description="Of the newest answer; its body is not kept.")
    error: Failure | None = Field(description="Why the newest attempt failed.")
    next_attempt_at: datetime | None = Field(description="Null when it is delivered or dead.")
    payload: dict[str, Any] = Field(description="What is sent: type, time and ids.")
    created_at: datetime
    ended_at: datetime | None


class Replayed(BaseModel):
    replayed: int = Field(description="Dead deliveries that are sent again.")

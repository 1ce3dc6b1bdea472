"""Request and response schemas of webhooks and their deliveries."""

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from app.core.webhooks.sender import Failure
from app.db.webhooks import DeliveryState, EventType, MessageFormat
from lethe.certificate.validation import PLAIN_TEXT

TargetUrl = Annotated[
    str,
    Field(
        min_length=1,
        max_length=2000,
        pattern=r"^https?://[!-~]+$",
        description="Where messages are posted. Must be https, have a public address and contain no "
        "credentials.",
    ),
]
Types = Annotated[
    list[EventType],
    Field(
        max_length=len(EventType),
        description="The events to send. Empty for all of them, including those that later releases add.",
    ),
]
Description = Annotated[
    str,
    Field(
        max_length=200,
        pattern=PLAIN_TEXT.removesuffix("+$") + "*$",
        description="A note for your own use. Do not write about a person.",
    ),
]


class WebhookRequest(BaseModel):
    """The webhook to create."""

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
    enabled: bool = Field(True, description="Whether messages are sent.")
    format: MessageFormat = Field(
        MessageFormat.STANDARD,
        description="How the body is written. `cloudevents` wraps the data in a CloudEvents 1.0 envelope.",
    )


class WebhookPatch(BaseModel):
    """The fields to change. Omitted fields stay as they are."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"enabled": True}]})

    url: TargetUrl | None = None
    event_types: Types | None = None
    description: Description | None = None
    enabled: bool | None = Field(
        None,
        description="While false, nothing is sent and new events are not stored. Deliveries that were "
        "pending continue when it is true again.",
    )
    format: MessageFormat | None = Field(None, description="How the body is written.")


class Rotation(BaseModel):
    """How to replace the secret of a webhook."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"overlap_hours": 24}]})

    overlap_hours: float = Field(
        24.0,
        ge=0,
        le=168,
        description="For how long messages are also signed with the old secret. 0 if it leaked.",
    )


class WebhookView(BaseModel):
    """A webhook without its secret."""

    id: UUID
    url: str = Field(description="Where messages are posted.")
    event_types: list[EventType] = Field(description="The events that are sent. Empty for all of them.")
    description: str = Field(description="A note for your own use.")
    enabled: bool = Field(description="Whether messages are sent.")
    format: MessageFormat = Field(description="How the body of its messages is written.")
    disabled_reason: str | None = Field(
        description="`gone` if the webhook was disabled because it answered 410. Null if you disabled it."
    )
    old_secret_until: datetime | None = Field(
        description="Until when messages are also signed with the old secret. Null if they are not."
    )
    created_at: datetime


class NewWebhook(WebhookView):
    """A webhook with its new secret."""

    secret: str = Field(description="Verify the signature of every message with it. Shown only once.")


class DeliveryView(BaseModel):
    """One message on its way to one webhook."""

    id: UUID
    message_id: str = Field(
        description="The value of the header `webhook-id`. It is the same in every attempt and replay."
    )
    state: DeliveryState = Field(description="`dead` means that all attempts failed.")
    attempts: int = Field(description="How many times the message was sent.")
    status_code: int | None = Field(description="The HTTP status of the last answer. Its body is not stored.")
    error: Failure | None = Field(description="Why the last attempt failed.")
    next_attempt_at: datetime | None = Field(
        description="When the next attempt is due. Null if the message is delivered or dead."
    )
    payload: dict[str, Any] = Field(description="The body of the message: type, time and ids.")
    created_at: datetime
    ended_at: datetime | None = Field(description="When the delivery succeeded or was given up.")


class ReplayResult(BaseModel):
    """The result of replaying dead deliveries."""

    replayed: int = Field(description="The number of dead deliveries that are sent again.")

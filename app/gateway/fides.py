"""Erasures from Fides, the privacy engineering platform, which calls Lethe as a webhook of a policy.

Fides pauses its request while `halt` is true in our answer. When the erasure has ended, the dispatcher calls
the address in `reply-to` with the token in `reply-to-token`, and Fides continues.
"""

from typing import Annotated, Literal

from fastapi import APIRouter, Header, Query
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from app.core.settings import Settings
from app.db import callbacks
from app.db.callbacks import ENDED, Protocol
from app.gateway.auth.guard import CanWriteErasures, ServicesOf
from app.gateway.erasures.schemas import ErasureDetails, SubjectId
from app.gateway.errors import InvalidRequest
from app.gateway.json_body import JsonRoute
from app.gateway.models.schemas import NAME
from app.gateway.opendsr import record_request
from app.gateway.webhooks.service import check_target

router = APIRouter(prefix="/v1/integrations", route_class=JsonRoute, tags=["interoperability"])
_SUBJECT: TypeAdapter[str] = TypeAdapter(SubjectId)


class FidesRequest(BaseModel):
    """A request of Fides to a webhook. Fields that Lethe does not use are ignored."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "privacy_request_id": "pri_029832ba-3b84-40f7-8946-82aec6f95448",
                    "direction": "two_way",
                    "callback_type": "pre_execution",
                    "identity": {"email": "person@example.com"},
                    "policy_action": "erasure",
                }
            ]
        }
    )

    privacy_request_id: str = Field(
        pattern=r"^[A-Za-z0-9_.-]{1,80}$", description="The id of the request in Fides."
    )
    identity: dict[str, str | int | None] = Field(
        max_length=50, description="The identifiers of the person, by kind."
    )
    policy_action: Literal["erasure"] | None = Field(
        None, description="Only erasure is supported. Null means erasure."
    )


class FidesAnswer(BaseModel):
    """The answer that Fides expects."""

    derived_identities: dict[str, str] = Field(description="Always empty.")
    halt: bool = Field(description="Whether Fides has to wait until Lethe calls back.")


@router.post("/fides")
def request_by_fides(
    body: FidesRequest,
    caller: CanWriteErasures,
    services: ServicesOf,
    identity: Annotated[
        str,
        Query(
            pattern=r"^[A-Za-z0-9_.-]{1,64}$",
            description="The kind of identifier that the column `subject_id` holds.",
        ),
    ] = "email",
    model: Annotated[
        list[Annotated[str, Field(pattern=NAME)]] | None,
        Query(description="Only this model. Repeat it for more. Default: every model."),
    ] = None,
    reply_to: Annotated[
        str | None,
        Header(max_length=1900, description="Where to call back. A path is below LETHE_FIDES_URL."),
    ] = None,
    reply_to_token: Annotated[
        str | None, Header(max_length=8000, pattern=r"^[!-~]+$", description="The token for that call.")
    ] = None,
) -> FidesAnswer:
    """Request an erasure as a webhook of Fides. With `reply-to`, Fides waits until the erasure has ended.

    Sending the same `privacy_request_id` again starts nothing.
    """
    subject = _subject(body, identity)
    url = None if reply_to is None else _callback_url(services.settings, reply_to)
    if url is not None and reply_to_token is None:
        raise InvalidRequest("The header reply-to needs the header reply-to-token.")
    details = _details(body.privacy_request_id, model)
    erasure = record_request(
        services,
        caller,
        Protocol.FIDES,
        body.privacy_request_id,
        details,
        [subject],
        [] if url is None else [url],
        reply_to_token,
    )
    with services.database.reading() as session:
        ended = callbacks.status_of(session, erasure.id) in ENDED
    return FidesAnswer(derived_identities={}, halt=url is not None and not ended)


def _subject(body: FidesRequest, kind: str) -> str:
    value = body.identity.get(kind)
    try:
        return _SUBJECT.validate_python("" if value is None else str(value))
    except ValidationError:
        raise InvalidRequest(
            "The request has no usable identity of the kind that the webhook's URL asks for."
        ) from None


def _details(request_id: str, models: list[str] | None) -> ErasureDetails:
    return ErasureDetails(models=models, reference=callbacks.reference_of(Protocol.FIDES, request_id))


def _callback_url(settings: Settings, reply_to: str) -> str:
    """Return the absolute address to call back. It must be one that webhooks may be sent to."""
    url = reply_to
    if reply_to.startswith("/") and not reply_to.startswith("//"):
        if not settings.fides_url:
            raise InvalidRequest(
                "The header reply-to is a path, and the operator has not set LETHE_FIDES_URL."
            )
        url = settings.fides_url.rstrip("/") + reply_to
    check_target(settings, url)
    return url

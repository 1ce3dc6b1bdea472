"""Requests by OpenDSR, the open protocol for data subject requests between controllers and processors.

Lethe is the processor and a tenant is the controller. Only erasure is supported. Every answer to a request is
signed with the key of the operator's domain (`app.core.opendsr_key`). The endpoints answer 404 unless the
operator has set that key. Errors have the form of the protocol, not of RFC 9457.
"""

import base64
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Depends, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError
from sqlalchemy.orm import Session

from app.core.clock import now
from app.core.opendsr_key import OpenDsrKey
from app.db import callbacks
from app.db.callbacks import Protocol, RequestStatus
from app.db.tables import Erasure
from app.gateway.auth.caller import Caller
from app.gateway.auth.guard import CanReadErasures, CanWriteErasures, ServicesOf
from app.gateway.erasures import service
from app.gateway.erasures.recording import Answer, record_group
from app.gateway.erasures.schemas import ErasureDetails, SubjectId
from app.gateway.errors import Conflict, InvalidRequest, NotFound, ServiceError
from app.gateway.webhooks.service import check_target
from app.services import Services
from lethe.certificate.validation import validation_message

router = APIRouter(prefix="/opendsr/v3", tags=["interoperability"])
API_VERSION = "3.0"
MAX_CALLBACKS = 5
IDENTITY_TYPES = ("controller_customer_id", "email")


class Identity(BaseModel):
    """One identifier of a person."""

    identity_type: Literal["controller_customer_id", "email"] = Field(
        description="What kind of identifier it is. Its value is compared with the column `subject_id`."
    )
    identity_value: SubjectId = Field(description="The identifier.")
    identity_format: Literal["raw"] = Field(description="How it is encoded. Hashes are not supported.")


class SubjectRequest(BaseModel):
    """A data subject request."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "regulation": "gdpr",
                    "subject_request_id": "a7551968-d5d6-44b2-9831-815ac9017798",
                    "subject_request_type": "erasure",
                    "submitted_time": "2026-10-02T15:00:00Z",
                    "subject_identities": [
                        {
                            "identity_type": "controller_customer_id",
                            "identity_value": "patient-0042",
                            "identity_format": "raw",
                        }
                    ],
                }
            ]
        }
    )

    regulation: Literal["gdpr", "ccpa"] = Field(description="The law that applies.")
    subject_request_id: UUID = Field(description="The controller's id of the request.")
    subject_request_type: Literal["erasure"] = Field(description="Only erasure is supported.")
    submitted_time: AwareDatetime = Field(description="When the person asked.")
    subject_identities: list[Identity] = Field(min_length=1, max_length=100, description="Whom to erase.")
    status_callback_urls: list[str] = Field(
        [], max_length=MAX_CALLBACKS, description="Addresses to report every change of status to."
    )


class IdentityKind(BaseModel):
    """A supported kind of identifier."""

    identity_type: str
    identity_format: str


class Discovery(BaseModel):
    """What this processor supports."""

    api_version: str
    supported_identities: list[IdentityKind]
    supported_subject_request_types: list[str]
    processor_certificate: str = Field(description="Where the certificate that signs answers is.")


class RequestReceipt(BaseModel):
    """The receipt of a request. The header `X-OpenDSR-Signature` signs its exact bytes."""

    controller_id: str = Field(description="The id of your tenant.")
    expected_completion_time: datetime | None
    received_time: datetime
    encoded_request: str = Field(description="The body of the request, in base64. Do not log or store it.")
    subject_request_id: UUID


class RequestView(BaseModel):
    """The status of a request. The header `X-OpenDSR-Signature` signs its exact bytes."""

    controller_id: str
    expected_completion_time: datetime
    subject_request_id: UUID
    request_status: RequestStatus
    api_version: str
    results_url: None = Field(description="Always null: an erasure has no result to download.")


class Cancellation(BaseModel):
    """The receipt of a cancellation. The header `X-OpenDSR-Signature` signs its exact bytes."""

    controller_id: str
    received_time: datetime
    subject_request_id: UUID


class ErrorDetail(BaseModel):
    """What is wrong with a request."""

    code: int
    message: str


class OpenDsrError(BaseModel):
    """An error, in the form of the protocol."""

    error: ErrorDetail


def _body_schema() -> dict[str, Any]:
    """Return the schema of the body. The body is read as bytes, because its receipt quotes it."""
    schema = SubjectRequest.model_json_schema()
    schema["properties"]["subject_identities"]["items"] = schema.pop("$defs")["Identity"]
    return schema


BODY: dict[str, Any] = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": _body_schema()}}}
}
BAD_REQUEST: dict[int | str, dict[str, Any]] = {
    400: {"model": OpenDsrError, "description": "The request is not valid, or of an unsupported type."}
}


async def key_of(request: Request) -> OpenDsrKey:
    """Return the key that signs answers, or raise `NotFound` if OpenDSR is off."""
    key: OpenDsrKey | None = request.state.opendsr_key
    if key is None:
        raise NotFound("OpenDSR is not switched on here. The operator can set LETHE_OPENDSR_KEY_FILE.")
    return key


KeyOf = Annotated[OpenDsrKey, Depends(key_of)]


@router.get("/discovery")
def discover(_: KeyOf, services: ServicesOf) -> Discovery:
    """Return what this processor supports. Needs no API key."""
    base = services.settings.public_url.rstrip("/")
    return Discovery(
        api_version=API_VERSION,
        supported_identities=[
            IdentityKind(identity_type=kind, identity_format="raw") for kind in IDENTITY_TYPES
        ],
        supported_subject_request_types=["erasure"],
        processor_certificate=f"{base}/opendsr/v3/certificate.pem",
    )


@router.get(
    "/certificate.pem",
    response_class=Response,
    responses={200: {"content": {"application/x-pem-file": {"schema": {"type": "string"}}}}},
)
def get_opendsr_certificate(key: KeyOf) -> Response:
    """Return the certificate whose key signs answers and callbacks. Needs no API key."""
    return Response(key.certificate, media_type="application/x-pem-file")


@router.post(
    "/requests",
    status_code=201,
    response_model=RequestReceipt,
    openapi_extra=BODY,
    responses=BAD_REQUEST,
)
async def request_by_opendsr(
    request: Request, caller: CanWriteErasures, services: ServicesOf, key: KeyOf
) -> Response:
    """Request an erasure by OpenDSR, from every model of your tenant. The answer is a signed receipt.

    Sending the same `subject_request_id` again returns the receipt again and starts nothing.
    """
    raw = await request.body()
    try:
        body = SubjectRequest.model_validate_json(raw)
        for url in body.status_callback_urls:
            check_target(services.settings, url)
        erasure = await run_in_threadpool(_record, services, caller, body)
    except ValidationError as problem:
        return _refuse(_describe(problem))
    except InvalidRequest as problem:
        return _refuse(problem.detail)
    receipt = RequestReceipt(
        controller_id=str(caller.tenant_id),
        expected_completion_time=erasure.due_at,
        received_time=erasure.created_at,
        encoded_request=base64.b64encode(raw).decode(),
        subject_request_id=body.subject_request_id,
    )
    return _signed(key, receipt, 201)


@router.get("/requests/{subject_request_id}", response_model=RequestView)
def get_opendsr_request(
    subject_request_id: UUID, caller: CanReadErasures, services: ServicesOf, key: KeyOf
) -> Response:
    """Return the status of a request, signed."""
    with services.database.reading() as session:
        erasure = _get(session, caller, subject_request_id)
        view = RequestView(
            controller_id=str(caller.tenant_id),
            expected_completion_time=erasure.due_at,
            subject_request_id=subject_request_id,
            request_status=callbacks.status_of(session, erasure.id),
            api_version=API_VERSION,
            results_url=None,
        )
    return _signed(key, view, 200)


@router.delete(
    "/requests/{subject_request_id}", status_code=202, response_model=Cancellation, responses=BAD_REQUEST
)
def cancel_opendsr_request(
    subject_request_id: UUID, caller: CanWriteErasures, services: ServicesOf, key: KeyOf
) -> Response:
    """Cancel a request that is still pending. The answer is a signed receipt."""
    try:
        with services.database.writing() as session:
            erasure = _get(session, caller, subject_request_id)
            service.withdraw(session, caller.tenant_id, erasure.id, None)
    except Conflict as problem:
        return _refuse(problem.detail)
    receipt = Cancellation(
        controller_id=str(caller.tenant_id), received_time=now(), subject_request_id=subject_request_id
    )
    return _signed(key, receipt, 202)


def record_request(
    services: Services,
    caller: Caller,
    protocol: Protocol,
    request_id: str,
    details: ErasureDetails,
    subjects: Sequence[str],
    urls: Sequence[str],
    token: str | None = None,
) -> Erasure:
    """Record a request of another system as an erasure with callbacks, once.

    The callbacks are added in a transaction of their own. If the gateway dies in between, the other system
    has no answer and sends the request again, which adds them.
    """
    with services.database.reading() as session:
        erasure = callbacks.erasure_for(session, caller.tenant_id, protocol, request_id)
    if erasure is None:
        key = callbacks.reference_of(protocol, request_id)
        prepared = service.prepare(services.vault, caller.tenant_id, details, subjects, key)
        outcome: Answer | ServiceError = record_group(services, [prepared])[0]
        if isinstance(outcome, ServiceError):
            raise outcome
    with services.database.writing() as session:
        erasure = callbacks.erasure_for(session, caller.tenant_id, protocol, request_id)
        assert erasure is not None
        callbacks.add_callbacks(session, services.vault, erasure.id, protocol, request_id, urls, token)
    return erasure


def _record(services: Services, caller: Caller, body: SubjectRequest) -> Erasure:
    request_id = str(body.subject_request_id)
    details = ErasureDetails(
        reference=callbacks.reference_of(Protocol.OPENDSR, request_id),
        jurisdiction=body.regulation.upper(),
        received_at=body.submitted_time,
    )
    subjects = [identity.identity_value for identity in body.subject_identities]
    return record_request(
        services, caller, Protocol.OPENDSR, request_id, details, subjects, body.status_callback_urls
    )


def _get(session: Session, caller: Caller, subject_request_id: UUID) -> Erasure:
    erasure = callbacks.erasure_for(session, caller.tenant_id, Protocol.OPENDSR, str(subject_request_id))
    if erasure is None:
        raise NotFound("Your tenant has no OpenDSR request with this id.")
    return erasure


def _signed(key: OpenDsrKey, document: BaseModel, status: int) -> Response:
    body = json.dumps(_in_utc(document.model_dump(mode="json"))).encode()
    return Response(body, status, key.signed_headers(body), "application/json")


def _in_utc(document: dict[str, Any]) -> dict[str, Any]:
    return {
        name: datetime.fromisoformat(value).astimezone(UTC).isoformat()
        if name.endswith("_time") and value
        else value
        for name, value in document.items()
    }


def _describe(problem: ValidationError) -> str:
    """Name the first field that is wrong, without its value. Names that are not ours are left out."""
    first = problem.errors(include_url=False, include_input=False)[0]
    names = SubjectRequest.model_fields.keys() | Identity.model_fields.keys()
    where = ".".join(str(step) for step in first["loc"] if isinstance(step, int) or step in names)
    if where == "subject_request_type":
        return "subject_request_type: only erasure is supported"
    return f"{where or 'body'}: {validation_message(first)}"


def _refuse(message: str) -> Response:
    return JSONResponse(OpenDsrError(error=ErrorDetail(code=400, message=message)).model_dump(), 400)

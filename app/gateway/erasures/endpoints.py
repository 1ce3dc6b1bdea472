"""Endpoints for erasures and their receipts."""

from contextlib import AbstractContextManager
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse

from app.core import logging, tracing
from app.core.clock import now
from app.db.states import TaskState
from app.db.tables import Erasure
from app.gateway.auth.guard import CanReadErasures, CanWriteErasures, ServicesOf
from app.gateway.erasures import bulk, receipts, repository, service
from app.gateway.erasures.group_commit import GroupCommit
from app.gateway.erasures.receipts import CURSOR, Acknowledgement, ReceiptPage
from app.gateway.erasures.recording import Answer, record_group
from app.gateway.erasures.schemas import (
    ErasureDetails,
    ErasureProgress,
    ErasureRequest,
    ErasureView,
    Extension,
)
from app.gateway.errors import ServiceError
from app.gateway.event_stream import STREAM_RESPONSES, Changes
from app.gateway.json_body import JsonRoute
from app.gateway.models.schemas import NAME
from app.gateway.pagination import Cursor, Limit, Page, fetch_page
from app.gateway.reasons import ReasonText
from app.gateway.uploads import Uploads
from app.services import Services
from lethe.identifiers import NO_CONTROLS

log = logging.get_logger("gateway")
router = APIRouter(prefix="/v1/erasures", route_class=JsonRoute, tags=["erasures"])
INLINE_SUBJECTS = 50  # more than these are encrypted in a thread, so that other requests do not wait


IdempotencyHeader = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=255,
        pattern=r"^[\x20-\x7e]+$",
        description="A key of your choice that makes it safe to repeat the request. Remembered for 24 hours.",
    ),
]


@router.post("", status_code=202, response_model=ErasureView)
async def request_erasure(
    body: ErasureRequest,
    request: Request,
    caller: CanWriteErasures,
    idempotency_key: IdempotencyHeader = None,
) -> Response:
    """Request that people be erased from one or more models.

    The answer comes after the request is stored. Follow its state at `Location`. An identifier that no
    model knows is not an error, because that would reveal who is in the data.
    """
    services: Services = request.state.services
    group_commit: GroupCommit = request.state.group_commit
    with _traced(request, services) as trace:
        arguments = (services.vault, caller.tenant_id, body, body.subjects, idempotency_key, trace)
        if len(body.subjects) <= INLINE_SUBJECTS:
            prepared = service.prepare(*arguments)
        else:
            prepared = await run_in_threadpool(service.prepare, *arguments)
        return _accepted(await group_commit.submit(prepared))


@router.get("")
def list_erasures(
    caller: CanReadErasures,
    services: ServicesOf,
    state: Annotated[TaskState | None, Query(description="Only erasures with a task in this state.")] = None,
    model: Annotated[
        str | None, Query(pattern=NAME, description="Only erasures with a task on this model.")
    ] = None,
    reference: Annotated[
        str | None,
        Query(max_length=200, pattern=NO_CONTROLS, description="Only erasures with exactly this reference."),
    ] = None,
    overdue: Annotated[bool, Query(description="Only open erasures past their deadline.")] = False,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[ErasureView]:
    """List your tenant's erasures, newest first. Filters can be combined."""
    query = repository.filtered(
        caller.tenant_id, state=state, model=model, reference=reference, overdue_at=now() if overdue else None
    )
    with services.database.reading() as session:
        return fetch_page(
            session,
            query,
            Erasure.id,
            limit=limit,
            cursor=cursor,
            describe=lambda erasures: service.describe_erasures(session, erasures),
        )


@router.get("/{erasure_id}")
def get_erasure(erasure_id: UUID, caller: CanReadErasures, services: ServicesOf) -> ErasureView:
    """Return an erasure: its state, its deadline, and one task per model with outcomes and certificate."""
    with services.database.reading() as session:
        return service.describe_erasure(session, service.get(session, caller.tenant_id, erasure_id))


@router.get("/{erasure_id}/changes", response_class=StreamingResponse, responses=STREAM_RESPONSES)
async def follow_erasure(
    erasure_id: UUID, caller: CanReadErasures, services: ServicesOf, changes: Changes
) -> StreamingResponse:
    """Stream an erasure and its batches as server-sent events: now, and after every change, until it ends.

    Each event holds the erasure and its batches. If the connection breaks, send `Last-Event-ID` to receive
    an event only if something has changed.
    """

    def read() -> ErasureProgress:
        with services.database.reading() as session:
            erasure = service.get(session, caller.tenant_id, erasure_id)
            return service.describe_progress(session, erasure, caller)

    return await changes.follow(
        caller.tenant_id,
        read,
        lambda progress: all(task.state in service.ENDED_TASK for task in progress.erasure.tasks),
    )


@router.delete("/{erasure_id}")
def withdraw_erasure(
    erasure_id: UUID,
    caller: CanWriteErasures,
    services: ServicesOf,
    model: Annotated[
        str | None, Query(pattern=NAME, description="Withdraw only the task on this model.")
    ] = None,
    reason: Annotated[
        ReasonText | None,
        Query(description="Why. It is kept with the erasure. Do not name a person."),
    ] = None,
) -> ErasureView:
    """Withdraw the tasks that are not sealed in a batch yet. Their identifiers are deleted at once."""
    with services.database.writing() as session:
        return service.describe_erasure(
            session, service.withdraw(session, caller.tenant_id, erasure_id, model, reason)
        )


@router.post("/{erasure_id}/extend")
def extend_deadline(
    erasure_id: UUID, body: Extension, caller: CanWriteErasures, services: ServicesOf
) -> ErasureView:
    """Extend the deadline by two months. Possible once, and needs a reason."""
    with services.database.writing() as session:
        return service.describe_erasure(
            session, service.extend(session, caller.tenant_id, erasure_id, body.reason)
        )


@router.post("/bulk", status_code=202, response_model=ErasureView, openapi_extra=bulk.BODY)
async def request_bulk_erasure(
    request: Request,
    details: Annotated[ErasureDetails, Query()],
    caller: CanWriteErasures,
    services: ServicesOf,
    idempotency_key: IdempotencyHeader = None,
) -> Response:
    """Request the erasure of up to a million people in one request.

    Send the identifiers as NDJSON or CSV, and the details in the query. Either all of them are accepted or
    none.
    """
    uploads: Uploads = request.state.uploads

    def record() -> Answer | ServiceError:
        subjects = bulk.read_subjects(request.headers.get("content-type", ""), uploads.chunks(request))
        with _traced(request, services) as trace:
            arguments = (services.vault, caller.tenant_id, details, subjects, idempotency_key, trace)
            return record_group(services, [service.prepare(*arguments)])[0]

    outcome = await uploads.run(caller.tenant_id, record)
    if isinstance(outcome, ServiceError):
        raise outcome
    return _accepted(outcome)


@router.get("/{erasure_id}/receipts")
def list_receipts(
    erasure_id: UUID,
    caller: CanReadErasures,
    services: ServicesOf,
    model: Annotated[
        str | None, Query(pattern=NAME, description="Only receipts of the task on this model.")
    ] = None,
    ordinal: Annotated[
        int | None,
        Query(ge=0, lt=10_000_000, description="Only receipts of the subject at this position, from 0."),
    ] = None,
    limit: Limit = 50,
    cursor: Annotated[
        str | None, Query(pattern=CURSOR, description="The `next_cursor` of the previous page.")
    ] = None,
) -> ReceiptPage:
    """List the receipts to hand to the subjects, in the order of the request.

    Only completed tasks have receipts. You can fetch them until you acknowledge them, or until the policy's
    `receipt_days` have passed. After that the answer is 410. The audit log records every download.
    """
    with services.database.writing() as session:
        return receipts.download_receipts(
            session,
            services.data_keys,
            caller.tenant_id,
            erasure_id,
            model=model,
            ordinal=ordinal,
            limit=limit,
            cursor=cursor,
        )


@router.post("/{erasure_id}/receipts/acknowledge")
def acknowledge_receipts(erasure_id: UUID, caller: CanWriteErasures, services: ServicesOf) -> Acknowledgement:
    """Confirm that the receipts were handed out. Their salts are destroyed: nobody can issue them again."""
    with services.database.writing() as session:
        acknowledgement = receipts.acknowledge(session, caller.tenant_id, erasure_id)
    if not services.database.forget_deleted_bytes():
        log.warning("destroyed salts remain in the write-ahead log because a reader holds it open")
    return acknowledgement


def _traced(request: Request, services: Services) -> AbstractContextManager[str | None]:
    """Continue the caller's trace. The erasure carries it through all later steps."""
    return services.tracer.span("accept", parent=tracing.valid(request.headers.get("traceparent")))


def _accepted(answer: Answer) -> Response:
    """Return the response to a request that is recorded."""
    headers = {"Location": answer.location, "Retry-After": "5"}
    if answer.replayed:
        headers["Idempotent-Replayed"] = "true"
    return Response(answer.body, 202, headers, "application/json")

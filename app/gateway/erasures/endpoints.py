from contextlib import AbstractContextManager
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from app import tracing
from app.access.guard import CanReadErasures, CanWriteErasures, ServicesOf
from app.bootstrap import Services
from app.clock import now
from app.db.states import TaskState
from app.db.tables import Erasure
from app.erasures import bulk, repository, service
from app.erasures.intake import Intake
from app.erasures.recording import Answer, record_group
from app.erasures.schemas import NO_CONTROLS, ErasureDetails, ErasureRequest, ErasureShown, Extension
from app.errors import ServiceError
from app.models.schemas import NAME
from app.paging import Cursor, Limit, Page, paged
from app.uploads import Uploads

router = APIRouter(prefix="/v1/erasures", tags=["erasures"])
INLINE_SUBJECTS = 50  # more are encrypted in a thread, so that others are not kept waiting


IdempotencyHeader = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=255,
        pattern=r"^[\x20-\x7e]+$",
        description="Repeat the same key to repeat the same request safely; remembered for a day.",
    ),
]


@router.post("", status_code=202, response_model=ErasureShown)
async def request_erasure(
    body: ErasureRequest,
    request: Request,
    caller: CanWriteErasures,
    idempotency_key: IdempotencyHeader = None,
) -> Response:
    """Ask that people be erased. An unknown identifier is no error: that would tell who was in the data."""
    services: Services = request.state.services
    intake: Intake = request.state.intake
    with _traced(request, services) as trace:
        given = (services.vault, caller.tenant_id, body, body.subjects, idempotency_key, trace)
        if len(body.subjects) <= INLINE_SUBJECTS:
            prepared = service.prepare(*given)
        else:
            prepared = await run_in_threadpool(service.prepare, *given)
        return _accepted(await intake.submit(prepared))


@router.get("")
def list_erasures(
    caller: CanReadErasures,
    services: ServicesOf,
    state: Annotated[TaskState | None, Query(description="With a task in this state.")] = None,
    model: Annotated[str | None, Query(pattern=NAME, description="With a task on this model.")] = None,
    reference: Annotated[str | None, Query(max_length=200, pattern=NO_CONTROLS)] = None,
    overdue: Annotated[bool, Query(description="Only open ones past their deadline.")] = False,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Page[ErasureShown]:
    """Newest first."""
    query = repository.filtered(
        caller.tenant_id, state=state, model=model, reference=reference, overdue_at=now() if overdue else None
    )
    with services.database.reading() as session:
        return paged(
            session,
            query,
            Erasure.id,
            limit=limit,
            cursor=cursor,
            show=lambda erasure: service.shown(session, erasure),
        )


@router.get("/{erasure_id}")
def get_erasure(erasure_id: UUID, caller: CanReadErasures, services: ServicesOf) -> ErasureShown:
    """State, deadline, and one task per model with its outcomes, version and certificate."""
    with services.database.reading() as session:
        return service.shown(session, service.get(session, caller.tenant_id, erasure_id))


@router.delete("/{erasure_id}")
def withdraw_erasure(
    erasure_id: UUID,
    caller: CanWriteErasures,
    services: ServicesOf,
    model: Annotated[str | None, Query(pattern=NAME, description="Only the task on this model.")] = None,
) -> ErasureShown:
    """Withdraw what is not sealed yet; its identifiers are forgotten at once."""
    with services.database.writing() as session:
        return service.shown(session, service.withdraw(session, caller.tenant_id, erasure_id, model))


@router.post("/{erasure_id}/extend")
def extend_deadline(
    erasure_id: UUID, body: Extension, caller: CanWriteErasures, services: ServicesOf
) -> ErasureShown:
    """Extend the deadline by two months, once, with a reason."""
    with services.database.writing() as session:
        return service.shown(session, service.extend(session, caller.tenant_id, erasure_id, body.reason))


@router.post("/bulk", status_code=202, response_model=ErasureShown, openapi_extra=bulk.BODY)
async def request_bulk_erasure(
    request: Request,
    details: Annotated[ErasureDetails, Query()],
    caller: CanWriteErasures,
    services: ServicesOf,
    idempotency_key: IdempotencyHeader = None,
) -> Response:
    """One erasure of up to a million subjects, as NDJSON or CSV; all or nothing."""
    uploads: Uploads = request.state.uploads

    def record() -> Answer | ServiceError:
        subjects = bulk.subjects(request.headers.get("content-type", ""), uploads.chunks(request))
        with _traced(request, services) as trace:
            given = (services.vault, caller.tenant_id, details, subjects, idempotency_key, trace)
            return record_group(services.database, [service.prepare(*given)])[0]

    outcome = await uploads.run(record)
    if isinstance(outcome, ServiceError):
        raise outcome
    return _accepted(outcome)


def _traced(request: Request, services: Services) -> AbstractContextManager[str | None]:
    """The trace that the caller is in goes on here, and with the erasure to the end."""
    return services.tracer.span("intake", parent=tracing.valid(request.headers.get("traceparent")))


def _accepted(answer: Answer) -> Response:
    headers = {"Location": answer.location, "Retry-After": "5"}
    if answer.replayed:
        headers["Idempotent-Replayed"] = "true"
    return Response(answer.body, 202, headers, "application/json")

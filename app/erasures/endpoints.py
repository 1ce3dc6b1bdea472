from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Header, Request, Response
from fastapi.concurrency import run_in_threadpool

from app.access.guard import CanReadErasures, CanWriteErasures, ServicesOf
from app.db.tables import Erasure
from app.erasures import repository, service
from app.erasures.intake import Intake
from app.erasures.schemas import ErasureRequest, ErasureShown
from app.paging import Cursor, Limit, Page, paged

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
    services: ServicesOf,
    idempotency_key: IdempotencyHeader = None,
) -> Response:
    """Ask that people be erased. An unknown identifier is no error: that would tell who was in the data."""
    intake: Intake = request.state.intake
    if len(body.subjects) <= INLINE_SUBJECTS:
        prepared = service.prepare(services.vault, caller.tenant_id, body, idempotency_key)
    else:
        prepared = await run_in_threadpool(
            service.prepare, services.vault, caller.tenant_id, body, idempotency_key
        )
    answer = await intake.submit(prepared)
    headers = {"Location": answer.location, "Retry-After": "5"}
    if answer.replayed:
        headers["Idempotent-Replayed"] = "true"
    return Response(answer.body, 202, headers, "application/json")


@router.get("")
def list_erasures(
    caller: CanReadErasures, services: ServicesOf, limit: Limit = 50, cursor: Cursor = None
) -> Page[ErasureShown]:
    """Newest first."""
    with services.database.reading() as session:
        return paged(
            session,
            repository.of_tenant(caller.tenant_id),
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

import json
from collections.abc import AsyncIterator
from typing import Annotated
from uuid import UUID

import anyio
from fastapi import APIRouter, Header, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse

from app.access.cache import Caller
from app.access.guard import CanAdminModels, CanReadModels, ServicesOf
from app.batches import repository, service
from app.batches.schemas import BatchShown
from app.bootstrap import Services
from app.db.states import Decision
from app.db.tables import Batch, BatchEvent
from app.paging import Cursor, Limit, Page, paged
from app.streams import Stream, Watched

router = APIRouter(prefix="/v1/batches", tags=["batches"])
POLL_SECONDS = 0.3
KEEP_ALIVE_SECONDS = 15
EVENTS_AT_ONCE = 500


@router.get("")
def list_batches(
    caller: CanReadModels, services: ServicesOf, limit: Limit = 50, cursor: Cursor = None
) -> Page[BatchShown]:
    """Newest first."""
    with services.database.reading() as session:
        return paged(
            session,
            repository.of_tenant(caller.tenant_id),
            Batch.id,
            limit=limit,
            cursor=cursor,
            show=lambda batch: service.shown(session, batch, caller),
        )


@router.get("/{batch_id}")
def get_batch(batch_id: UUID, caller: CanReadModels, services: ServicesOf) -> BatchShown:
    """State, step, progress, attempts, and what came of it."""
    with services.database.reading() as session:
        return service.shown(session, service.get(session, caller.tenant_id, batch_id), caller)


@router.post("/{batch_id}/retry", status_code=202)
def retry_batch(batch_id: UUID, caller: CanAdminModels, services: ServicesOf) -> BatchShown:
    """Try a held or failed batch again, under the model's present policy."""
    with services.database.writing() as session:
        return service.shown(session, service.retry(session, caller.tenant_id, batch_id), caller)


@router.post("/{batch_id}/cancel", status_code=202)
def cancel_batch(batch_id: UUID, caller: CanAdminModels, services: ServicesOf) -> BatchShown:
    """Stop a batch whose noise is not drawn yet. It is held, and its erasures stay open, until it is retried;
    an append ends as failed, and its parts stay staged. Cancelled twice is cancelled."""
    with services.database.writing() as session:
        return service.shown(session, service.cancel(session, caller.tenant_id, batch_id), caller)


@router.post("/{batch_id}/approve", status_code=202)
def approve_batch(batch_id: UUID, caller: CanAdminModels, services: ServicesOf) -> BatchShown:
    """Publish exactly the draw that the quality gate held."""
    return _decide(services, caller, batch_id, Decision.APPROVE)


@router.post("/{batch_id}/discard", status_code=202)
def discard_batch(batch_id: UUID, caller: CanAdminModels, services: ServicesOf) -> BatchShown:
    """Destroy the draw that is held; it counts as a release, by a signed statement. Then retry."""
    return _decide(services, caller, batch_id, Decision.DISCARD)


def _decide(services: Services, caller: Caller, batch_id: UUID, decision: Decision) -> BatchShown:
    with services.database.writing() as session:
        return service.shown(session, service.decide(session, caller.tenant_id, batch_id, decision), caller)


@router.get(
    "/{batch_id}/events",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
)
async def follow_batch(
    batch_id: UUID,
    request: Request,
    caller: CanReadModels,
    services: ServicesOf,
    last_event_id: Annotated[str | None, Header(description="Resume after this event.")] = None,
) -> StreamingResponse:
    """Server-sent events until the batch ends; `Last-Event-ID` resumes."""
    await run_in_threadpool(get_batch, batch_id, caller, services)
    last = (
        int(last_event_id) if last_event_id and last_event_id.isdecimal() and len(last_event_id) < 19 else 0
    )
    return Stream(request.state.streams, _events(services, batch_id, last, Watched(request)))


async def _events(services: Services, batch_id: UUID, last: int, watched: Watched) -> AsyncIterator[str]:
    """Each look is a read of its own: no transaction is held while waiting."""
    quiet = 0.0
    while await watched.goes_on():
        lines, last, ended = await run_in_threadpool(_look, services, batch_id, last)
        for line in lines:
            yield line
        if ended:
            return
        quiet = 0.0 if lines else quiet + POLL_SECONDS
        if quiet >= KEEP_ALIVE_SECONDS:
            quiet = 0.0
            yield ": still here\n\n"
        await anyio.sleep(POLL_SECONDS)


def _look(services: Services, batch_id: UUID, last: int) -> tuple[list[str], int, bool]:
    with services.database.reading() as session:
        ended = session.get_one(Batch, batch_id).state in service.ENDED
        events = repository.events_after(session, batch_id, last, EVENTS_AT_ONCE)
    all_seen = ended and len(events) < EVENTS_AT_ONCE
    return [_line(event) for event in events], events[-1].id if events else last, all_seen


def _line(event: BatchEvent) -> str:
    data = json.dumps(event.data | {"at": event.at.isoformat()})
    return f"id: {event.id}\nevent: {event.kind}\ndata: {data}\n\n"

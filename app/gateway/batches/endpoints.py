"""Endpoints for batches."""

import json
from collections.abc import AsyncIterator
from typing import Annotated
from uuid import UUID

import anyio
from fastapi import APIRouter, Body, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse

from app.db.states import Decision
from app.db.tables import Batch, BatchEvent
from app.gateway.auth.caller import Caller
from app.gateway.auth.guard import CanAdminModels, CanReadModels, ServicesOf
from app.gateway.batches import service
from app.gateway.batches.schemas import BatchView, DecisionReason
from app.gateway.event_stream import STREAM_RESPONSES, Changes, EventStream, LastEventId, Listener
from app.gateway.json_body import JsonRoute
from app.gateway.pagination import Cursor, Limit, Page, fetch_page
from app.gateway.wake_up import WAKES_DISPATCHER
from app.services import Services

router = APIRouter(prefix="/v1/batches", route_class=JsonRoute, tags=["batches"])
POLL_SECONDS = 0.3
KEEP_ALIVE_SECONDS = 15
EVENTS_PER_POLL = 500
OptionalReason = Annotated[DecisionReason | None, Body(description="Why. The body may be left out.")]


@router.get("")
def list_batches(
    caller: CanReadModels, services: ServicesOf, limit: Limit = 50, cursor: Cursor = None
) -> Page[BatchView]:
    """List your tenant's batches, newest first."""
    with services.database.reading() as session:
        return fetch_page(
            session,
            service.of_tenant(caller.tenant_id),
            Batch.id,
            limit=limit,
            cursor=cursor,
            describe=lambda batches: service.describe_batches(session, batches, caller),
        )


@router.get("/{batch_id}")
def get_batch(batch_id: UUID, caller: CanReadModels, services: ServicesOf) -> BatchView:
    """Return a batch: its state, step, progress and attempts, and the version it published."""
    with services.database.reading() as session:
        return service.describe_batch(session, service.get(session, caller.tenant_id, batch_id), caller)


@router.get("/{batch_id}/changes", response_class=StreamingResponse, responses=STREAM_RESPONSES)
async def follow_batch_changes(
    batch_id: UUID,
    caller: CanReadModels,
    services: ServicesOf,
    changes: Changes,
) -> StreamingResponse:
    """Stream a batch as server-sent events: as it is now, and after every change, until it ends."""
    return await changes.follow(
        caller.tenant_id,
        lambda: get_batch(batch_id, caller, services),
        lambda batch: batch.state in service.ENDED,
    )


@router.post("/{batch_id}/retry", status_code=202, dependencies=[WAKES_DISPATCHER])
def retry_batch(
    batch_id: UUID, caller: CanAdminModels, services: ServicesOf, body: OptionalReason = None
) -> BatchView:
    """Retry a batch that is on hold or failed, under the model's current policy."""
    with services.database.writing() as session:
        batch = service.retry(session, caller.tenant_id, batch_id, _decided(caller, body))
        return service.describe_batch(session, batch, caller)


@router.post("/{batch_id}/cancel", status_code=202)
def cancel_batch(
    batch_id: UUID, caller: CanAdminModels, services: ServicesOf, body: OptionalReason = None
) -> BatchView:
    """Cancel a batch whose noise is not drawn yet.

    The batch is then on hold, and its erasures stay open until you retry it. A cancelled append fails, and
    its parts stay staged. Cancelling twice changes nothing.
    """
    with services.database.writing() as session:
        batch = service.cancel(session, caller.tenant_id, batch_id, _decided(caller, body))
        return service.describe_batch(session, batch, caller)


@router.post("/{batch_id}/approve", status_code=202, dependencies=[WAKES_DISPATCHER])
def approve_batch(
    batch_id: UUID, caller: CanAdminModels, services: ServicesOf, body: OptionalReason = None
) -> BatchView:
    """Publish the draw of a batch that is on hold, exactly as it is."""
    return _decide(services, caller, batch_id, Decision.APPROVE, body)


@router.post("/{batch_id}/discard", status_code=202, dependencies=[WAKES_DISPATCHER])
def discard_batch(
    batch_id: UUID, caller: CanAdminModels, services: ServicesOf, body: OptionalReason = None
) -> BatchView:
    """Destroy the draw of a batch that is on hold.

    A signed statement counts it as a release, so it spends from the model's lifetime budget. Retry the batch
    afterwards.
    """
    return _decide(services, caller, batch_id, Decision.DISCARD, body)


def _decide(
    services: Services, caller: Caller, batch_id: UUID, decision: Decision, body: DecisionReason | None
) -> BatchView:
    with services.database.writing() as session:
        batch = service.decide(session, caller.tenant_id, batch_id, decision, _decided(caller, body))
        return service.describe_batch(session, batch, caller)


def _decided(caller: Caller, body: DecisionReason | None) -> dict[str, str]:
    return service.who_and_why(caller, None if body is None else body.reason)


@router.get(
    "/{batch_id}/events",
    response_class=StreamingResponse,
    responses=STREAM_RESPONSES,
)
async def follow_batch(
    batch_id: UUID,
    request: Request,
    caller: CanReadModels,
    services: ServicesOf,
    last_event_id: LastEventId = None,
) -> StreamingResponse:
    """Stream the events of a batch as server-sent events until it ends.

    If the connection breaks, send `Last-Event-ID` to continue where it ended.
    """
    await run_in_threadpool(get_batch, batch_id, caller, services)
    last = (
        int(last_event_id) if last_event_id and last_event_id.isdecimal() and len(last_event_id) < 19 else 0
    )
    lines = stream_events(services, batch_id, last, Listener(request))
    return EventStream(request.state.streams, caller.tenant_id, lines)


async def stream_events(
    services: Services, batch_id: UUID, last: int, listener: Listener
) -> AsyncIterator[str]:
    """Yield the events after `last` until the batch ends or the listener leaves.

    Each poll is a separate read: no transaction stays open in between.
    """
    quiet = 0.0
    while await listener.is_active():
        lines, last, ended = await run_in_threadpool(poll_events, services, batch_id, last)
        for line in lines:
            yield line
        if ended:
            return
        quiet = 0.0 if lines else quiet + POLL_SECONDS
        if quiet >= KEEP_ALIVE_SECONDS:
            quiet = 0.0
            yield ": still here\n\n"
        await anyio.sleep(POLL_SECONDS)


def poll_events(services: Services, batch_id: UUID, last: int) -> tuple[list[str], int, bool]:
    """Return the next events after `last`, the newest id, and whether the batch has no more to come."""
    with services.database.reading() as session:
        ended = session.get_one(Batch, batch_id).state in service.ENDED
        events = service.events_after(session, batch_id, last, EVENTS_PER_POLL)
    exhausted = ended and len(events) < EVENTS_PER_POLL
    return [_line(event) for event in events], events[-1].id if events else last, exhausted


def _line(event: BatchEvent) -> str:
    data = json.dumps(event.data | {"at": event.at.isoformat()})
    return f"id: {event.id}\nevent: {event.kind}\ndata: {data}\n\n"

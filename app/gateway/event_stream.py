"""Long-lived streams of server-sent events: a limit on their number, and regular checks of their caller.

A stream of changes sends a resource as JSON when it begins and after every change. A client that reads it
needs no request in between, and cannot miss a change that happens before the stream has begun.
"""

import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Any, TypeVar
from uuid import UUID

import anyio
from fastapi import Depends, Header, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from starlette.types import Receive, Scope, Send

from app.gateway.auth.caller import Caller
from app.gateway.auth.guard import identify
from app.gateway.errors import Unauthenticated, Unavailable
from app.gateway.tenant_slots import TenantSlots

R = TypeVar("R", bound=BaseModel)

MAX_STREAMS = 200  # of one gateway. Each one polls the database several times a second.
RECHECK_SECONDS = 60.0
POLL_SECONDS = 0.3
KEEP_ALIVE_SECONDS = 5.0
LONGEST_STREAM = 86_400.0

STREAM_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Server-sent events.",
        "content": {"text/event-stream": {"schema": {}}},
    }
}
LastEventId = Annotated[
    str | None,
    Header(description="The id of the last event you received. The stream continues after it."),
]
StreamTimeout = Annotated[
    float,
    Query(
        gt=0,
        le=LONGEST_STREAM,
        description="Close the stream after this many seconds.",
        examples=[0.5],
    ),
]


class EventStream(StreamingResponse):
    """A response of server-sent events.

    It takes a slot of its tenant until the last byte is sent or the client leaves.
    """

    def __init__(self, slots: TenantSlots, tenant: UUID, lines: AsyncIterator[str]) -> None:
        # Some proxies collect a response before they pass it on, unless this header forbids it.
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(lines, media_type="text/event-stream", headers=headers)
        if not slots.has_room(tenant):
            raise Unavailable(
                "Too many event streams are open on this gateway. Try again in 10 seconds.",
                headers={"Retry-After": "10"},
            )
        self._slots, self._tenant = slots, tenant

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream, and count it as open while that lasts."""
        self._slots.take(self._tenant)
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._slots.release(self._tenant)


class Listener:
    """The client at the other end of a stream. A revoked key ends its streams within `RECHECK_SECONDS`."""

    def __init__(
        self, request: Request, identify_caller: Callable[[Request], Awaitable[Caller | None]] = identify
    ) -> None:
        self._request, self._identify_caller = request, identify_caller
        self._checked_at = time.monotonic()

    async def is_active(self) -> bool:
        """Return whether the client is connected, its key is valid, and the gateway is not closing."""
        if self._request.state.drain.closing or await self._request.is_disconnected():
            return False
        if time.monotonic() - self._checked_at < RECHECK_SECONDS:
            return True
        self._checked_at = time.monotonic()
        try:
            return await self._identify_caller(self._request) is not None
        except Unauthenticated:
            return False


class ChangeStream:
    """A dependency of every endpoint that ends in `/changes`. The endpoint says what to read."""

    def __init__(
        self,
        request: Request,
        last_event_id: LastEventId = None,
        timeout: StreamTimeout = LONGEST_STREAM,
    ) -> None:
        self._request, self._last, self._timeout = request, last_event_id or "", timeout

    async def follow(
        self, tenant: UUID, read: Callable[[], R], has_ended: Callable[[R], bool]
    ) -> StreamingResponse:
        """Stream a resource, now and after every change, until it has ended or the timeout has passed.

        The stream takes one of the tenant's slots. `read` is called once before the response begins, so that
        its errors become ordinary answers.
        """

        def observe() -> tuple[BaseModel, bool]:
            resource = read()
            return resource, has_ended(resource)

        first = await run_in_threadpool(observe)
        lines = _changes(first, observe, self._last, Listener(self._request), self._timeout)
        return EventStream(self._request.state.streams, tenant, lines)


Changes = Annotated[ChangeStream, Depends()]


async def _changes(
    current: tuple[BaseModel, bool],
    read: Callable[[], tuple[BaseModel, bool]],
    last: str,
    listener: Listener,
    timeout: float,
) -> AsyncIterator[str]:
    """Yield the events. The id of an event is the digest of its data, which tells whether it is news."""
    started = sent_at = time.monotonic()
    while True:
        resource, ended = current
        data = resource.model_dump_json()
        digest = hashlib.sha256(data.encode()).hexdigest()[:32]
        if digest != last:
            last, sent_at = digest, time.monotonic()
            yield f"id: {digest}\nevent: change\ndata: {data}\n\n"
        left = started + timeout - time.monotonic()
        if ended or left <= 0:
            return
        if time.monotonic() - sent_at >= KEEP_ALIVE_SECONDS:
            sent_at = time.monotonic()
            yield ": still here\n\n"
        await anyio.sleep(min(POLL_SECONDS, left))
        if not await listener.is_active():
            return
        current = await run_in_threadpool(read)

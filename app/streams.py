"""Streams that last: so many at a time, and only as long as the key that opened them is good."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable

from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from app.access.cache import Caller
from app.access.guard import identify
from app.errors import Unauthenticated, Unavailable

MOST = 200
RECHECK_SECONDS = 60.0


class Streams:
    """How many are open on this gateway; each looks at the database several times a second."""

    def __init__(self, most: int = MOST) -> None:
        self.open, self.most = 0, most


class Stream(StreamingResponse):
    """Server-sent events; counted until the last byte is sent or the client has gone."""

    def __init__(self, streams: Streams, lines: AsyncIterator[str]) -> None:
        super().__init__(lines, media_type="text/event-stream", headers={"Cache-Control": "no-store"})
        if streams.open >= streams.most:
            raise Unavailable("Too many streams are open.", headers={"Retry-After": "10"})
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._streams.open += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._streams.open -= 1


class Watched:
    """Whether the caller is still there, and still someone who may listen."""

    def __init__(
        self, request: Request, who: Callable[[Request], Awaitable[Caller | None]] = identify
    ) -> None:
        self._request, self._who = request, who
        self._checked_at = time.monotonic()

    async def goes_on(self) -> bool:
        if self._request.state.drain.closing or await self._request.is_disconnected():
            return False
        if time.monotonic() - self._checked_at < RECHECK_SECONDS:
            return True
        self._checked_at = time.monotonic()
        try:
            return await self._who(self._request) is not None
        except Unauthenticated:
            return False

"""The HTTP protocol of the gateway's server, with limits on requests that are not complete yet.

Nobody is authenticated before a request has arrived, so these limits protect the event loop from everyone:
a header may have a number of bytes and fields, and header and body have to arrive in time. If too many
requests are incomplete at once, the oldest are given up: an honest one takes milliseconds to arrive.
"""

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, cast

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.core.settings import Settings
from app.gateway.errors import HeaderTooLarge, MalformedRequest, RequestTimeout, ServiceError
from app.gateway.middleware import carries_file

MAX_HEADER_FIELDS = 100


@dataclass(frozen=True)
class RequestLimits:
    """What a request that is not complete yet may take, and how many there may be."""

    header_bytes: int
    header_seconds: float
    body_seconds: float
    incomplete_requests: int

    @classmethod
    def of(cls, settings: Settings) -> "RequestLimits":
        """Return the limits in the settings."""
        return cls(
            settings.max_header_bytes,
            settings.header_seconds,
            settings.body_seconds,
            settings.max_incomplete_requests,
        )


class _TooManyFields(Exception):
    """Stops the parser."""


class LimitedHttp(HttpToolsProtocol):
    """One connection. It counts the bytes of a header before the parser collects them."""

    def __init__(self, *arguments: Any, limits: RequestLimits, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._limits = limits
        self._in_header, self._header_bytes = True, 0
        self._refusal: ServiceError | None = None
        self.incomplete_since: float | None = None
        """When the first byte of an incomplete request arrived, in seconds of the event loop's clock."""

    @classmethod
    def with_limits(cls, limits: RequestLimits) -> type[asyncio.Protocol]:
        """Return a factory of connections, in the form that uvicorn expects."""
        return cast("type[asyncio.Protocol]", partial(cls, limits=limits))

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self.incomplete_since = self.loop.time()

    def data_received(self, data: bytes) -> None:
        """Parse some bytes. A header that exceeds its limit is refused before the rest is parsed."""
        while data and not self.transport.is_closing():
            piece, data = self._next_piece(data)
            super().data_received(piece)
            if self._in_header and self._header_bytes >= self._limits.header_bytes:
                self.refuse(HeaderTooLarge(f"It may have at most {self._limits.header_bytes} bytes."))

    def _next_piece(self, data: bytes) -> tuple[bytes, bytes]:
        if not self._in_header:
            return data, b""
        if self.incomplete_since is None:
            self.incomplete_since = self.loop.time()
        room = self._limits.header_bytes - self._header_bytes
        piece = data[:room]
        self._header_bytes += len(piece)
        return piece, data[room:]

    # Called by the parser

    def on_message_begin(self) -> None:
        """Start the clock of a request that arrived together with the one before."""
        super().on_message_begin()
        if self.incomplete_since is None:
            self.incomplete_since = self.loop.time()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take one field of a header, up to a number of them."""
        if len(self.headers) >= MAX_HEADER_FIELDS:
            self._refusal = HeaderTooLarge(f"It may have at most {MAX_HEADER_FIELDS} fields.")
            raise _TooManyFields
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Handle the request. The clock starts again for its body."""
        self._in_header = False
        self.incomplete_since = self.loop.time()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Stop the clock: the request is complete."""
        self._in_header, self._header_bytes = True, 0
        self.incomplete_since = None
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that could not be parsed, or whose parsing we stopped."""
        del msg
        self.refuse(self._refusal or MalformedRequest("Check the client or the proxy that sent it."))

    # Limits

    def is_late(self, now: float) -> bool:
        """Return whether an incomplete request has had its time.

        The body of a file has limits of its own while the endpoint reads it (`app.gateway.uploads`).
        """
        if self.incomplete_since is None or self._waits_for_earlier_answer:
            return False
        if self._in_header:
            return now - self.incomplete_since > self._limits.header_seconds
        return not self._is_receiving_file and now - self.incomplete_since > self._limits.body_seconds

    @property
    def can_be_dropped(self) -> bool:
        """Whether the connection waits for the rest of a request that is not a file."""
        return (
            self.incomplete_since is not None
            and not self._waits_for_earlier_answer
            and (self._in_header or not self._is_receiving_file)
        )

    @property
    def _waits_for_earlier_answer(self) -> bool:
        """Whether an earlier request of this connection is not answered yet, so that it must stay open."""
        return bool(self.pipeline) or (self._in_header and not self._is_idle)

    @property
    def _is_idle(self) -> bool:
        return not self.cycle or self.cycle.response_complete

    @property
    def _is_receiving_file(self) -> bool:
        return (
            not self._in_header
            and not self.cycle.response_complete
            and carries_file(cast("Scope", self.scope))
        )

    def give_up(self) -> None:
        """Close a connection whose request did not arrive. One that sent nothing gets no answer."""
        if not self.cycle and not self._header_bytes:
            self.transport.close()
        else:
            self.refuse(RequestTimeout("Send the request again, without pauses."))

    def refuse(self, error: ServiceError) -> None:
        """Answer with a problem document, unless an answer has begun, and close the connection."""
        self.incomplete_since = None
        if self.transport.is_closing():
            return
        may_answer = self._is_idle if self._in_header else not self.cycle.response_started
        if may_answer:
            self.transport.write(_response(error))
        self.transport.close()


def close_late(connections: Iterable[Any], limits: RequestLimits, now: float) -> None:
    """Give up requests that did not arrive in time, and the oldest if too many are incomplete."""
    limited = [connection for connection in connections if isinstance(connection, LimitedHttp)]
    for connection in limited:
        if connection.is_late(now):
            connection.give_up()
    waiting = [connection for connection in limited if connection.can_be_dropped]
    excess = len(waiting) - limits.incomplete_requests
    if excess > 0:
        waiting.sort(key=lambda connection: connection.incomplete_since or 0.0)
        for connection in waiting[:excess]:
            connection.give_up()


def _response(error: ServiceError) -> bytes:
    body = json.dumps(error.problem()).encode()
    head = (
        f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\n"
        "content-type: application/problem+json\r\n"
        f"content-length: {len(body)}\r\n"
        "connection: close\r\n\r\n"
    )
    return head.encode() + body

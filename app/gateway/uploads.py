"""Streamed request bodies, and the headers that describe a file or a piece of one.

A body is handed to a thread chunk by chunk: a file is never in memory as a whole.
"""

import base64
import binascii
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

import anyio
from anyio import from_thread, to_thread
from fastapi import Request

from app.core.settings import Settings
from app.gateway.errors import InvalidRequest, RequestTimeout, Unavailable
from app.gateway.tenant_slots import TenantSlots

T = TypeVar("T")

_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})")
_SHA256 = re.compile(r"(?:^|,)\s*sha-256=:([A-Za-z0-9+/=]{1,64}):\s*(?:,|$)")


@dataclass(frozen=True)
class Piece:
    """Bytes `start` to `end` - 1 of a file of `total` bytes."""

    start: int
    end: int
    total: int


class Uploads:
    """Runs uploads in threads of their own, so that slow senders do not block other requests."""

    def __init__(self, settings: Settings) -> None:
        self._idle_seconds = settings.upload_idle_seconds
        self._min_rate = settings.upload_min_bytes_per_second
        self._slots = TenantSlots(settings.max_uploads)

    async def run(self, tenant: UUID, work: Callable[[], T]) -> T:
        """Run `work` in an upload thread. Raise `Unavailable` if the tenant gets none in time."""
        if not await self._slots.take_within(self._idle_seconds, tenant):
            raise Unavailable(
                "Too many uploads are running on this gateway. Try again in 5 seconds.",
                headers={"Retry-After": "5"},
            )
        try:
            # The slot is taken already. This work must not also count against the shared thread limit.
            return await to_thread.run_sync(work, limiter=anyio.CapacityLimiter(1))
        finally:
            self._slots.release(tenant)

    def chunks(self, request: Request) -> Iterator[bytes]:
        """Iterate over the body of `request` in a thread started by `run`."""
        return at_pace(body_chunks(request, self._idle_seconds), self._idle_seconds, self._min_rate)


def at_pace(
    chunks: Iterator[bytes], seconds: float, rate: float, clock: Callable[[], float] = time.monotonic
) -> Iterator[bytes]:
    """Iterate over chunks, and raise `RequestTimeout` if they arrive too slowly.

    Whenever we have waited for the client for `seconds` in total, at least `rate` bytes per second of
    waiting must have arrived. Time that we need ourselves does not count.
    """
    waited, received = 0.0, 0
    while True:
        started = clock()
        chunk = next(chunks, None)
        if chunk is None:
            return
        waited, received = waited + clock() - started, received + len(chunk)
        if waited >= seconds:
            if received < rate * waited:
                raise RequestTimeout(
                    f"The file arrives too slowly. Send at least {rate:g} bytes per second.",
                    headers={"Connection": "close"},
                )
            waited, received = 0.0, 0
        yield chunk


def body_chunks(request: Request, idle_seconds: float) -> Iterator[bytes]:
    """Iterate over a request body in a thread.

    Raises `RequestTimeout` if the client sends nothing for `idle_seconds`.
    """
    stream = request.stream()

    async def next_chunk() -> bytes | None:
        try:
            with anyio.fail_after(idle_seconds):
                return await anext(stream, None)
        except TimeoutError:
            raise RequestTimeout(
                f"No data arrived for {idle_seconds:g} seconds. Send the request again.",
                headers={"Connection": "close"},
            ) from None

    while (chunk := from_thread.run(next_chunk)) is not None:
        if chunk:
            yield chunk


def parse_content_range(header: str | None) -> Piece | None:
    """Parse a request's `Content-Range: bytes first-last/total`.

    Without the header the body is the whole file, and None is returned.
    """
    if header is None:
        return None
    matched = _CONTENT_RANGE.fullmatch(header.strip())
    if matched is None:
        raise InvalidRequest(
            "The Content-Range header cannot be read. It must have the form `bytes first-last/total`."
        )
    first, last, total = (int(number) for number in matched.groups())
    if not first <= last < total:
        raise InvalidRequest(
            "The Content-Range header is inconsistent. It must satisfy first ≤ last < total."
        )
    return Piece(first, last + 1, total)


def parse_repr_digest(header: str | None) -> str | None:
    """Return the SHA-256 digest of the whole file in `Repr-Digest` (RFC 9530), in hex."""
    if header is None:
        return None
    matched = _SHA256.search(header)
    try:
        digest = base64.b64decode(matched.group(1), validate=True) if matched else b""
    except binascii.Error:
        digest = b""
    if len(digest) != 32:
        raise InvalidRequest(
            "The Repr-Digest header cannot be read. It must contain `sha-256=:…:`, the base64 of 32 bytes."
        )
    return digest.hex()


def binary_body(media_type: str) -> dict[str, Any]:
    """Return the OpenAPI entry for an endpoint that streams its request body."""
    schema = {"type": "string", "format": "binary"}
    return {"requestBody": {"required": True, "content": {media_type: {"schema": schema}}}}

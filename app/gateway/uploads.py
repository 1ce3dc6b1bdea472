"""Streamed request bodies, and the headers that describe a file or a piece of one.

A body is handed to a thread chunk by chunk: a file is never in memory as a whole.
"""

import base64
import binascii
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import anyio
from anyio import from_thread, to_thread
from fastapi import Request

from app.core.settings import Settings
from app.gateway.errors import InvalidRequest, RequestTimeout, Unavailable

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
        self._limiter = anyio.CapacityLimiter(settings.max_uploads)

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` in an upload thread. Raise `Unavailable` if no thread becomes free in time."""
        borrower = object()
        with anyio.move_on_after(self._idle_seconds) as waiting:
            await self._limiter.acquire_on_behalf_of(borrower)
        if waiting.cancelled_caught:
            raise Unavailable(
                "Too many uploads are running on this gateway. Try again in 5 seconds.",
                headers={"Retry-After": "5"},
            )
        try:
            # The slot is taken already. This work must not also count against the shared thread limit.
            return await to_thread.run_sync(work, limiter=anyio.CapacityLimiter(1))
        finally:
            self._limiter.release_on_behalf_of(borrower)

    def chunks(self, request: Request) -> Iterator[bytes]:
        """Iterate over the body of `request` in a thread started by `run`."""
        return body_chunks(request, self._idle_seconds)


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

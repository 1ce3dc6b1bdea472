"""A request body as chunks that a thread can iterate over: a file is never in memory as a whole."""

import base64
import binascii
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import anyio
from anyio import from_thread, to_thread
from fastapi import Request

from app.errors import InvalidRequest, RequestTimeout, Unavailable
from app.settings import Settings

T = TypeVar("T")

_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})")
_SHA256 = re.compile(r"(?:^|,)\s*sha-256=:([A-Za-z0-9+/=]{1,64}):\s*(?:,|$)")


@dataclass(frozen=True)
class Piece:
    """Bytes start … end-1 of a file of `total`."""

    start: int
    end: int
    total: int


class Uploads:
    """Threads of their own for those who send files: however slowly they send, nobody else waits for one."""

    def __init__(self, settings: Settings) -> None:
        self._patience = settings.upload_idle_seconds
        self._limiter = anyio.CapacityLimiter(settings.max_uploads)

    async def run(self, work: Callable[[], T]) -> T:
        """In one of the threads; 503 when none comes free."""
        borrower = object()
        with anyio.move_on_after(self._patience) as waiting:
            await self._limiter.acquire_on_behalf_of(borrower)
        if waiting.cancelled_caught:
            raise Unavailable("Too many files are being sent.", headers={"Retry-After": "5"})
        try:
            # The place is taken already; the shared threads must not be counted against it.
            return await to_thread.run_sync(work, limiter=anyio.CapacityLimiter(1))
        finally:
            self._limiter.release_on_behalf_of(borrower)

    def chunks(self, request: Request) -> Iterator[bytes]:
        return body_chunks(request, self._patience)


def body_chunks(request: Request, patience: float) -> Iterator[bytes]:
    """For a thread that `Uploads` runs; whoever falls silent for `patience` seconds is sent away."""
    stream = request.stream()

    async def following() -> bytes | None:
        try:
            with anyio.fail_after(patience):
                return await anext(stream, None)
        except TimeoutError:
            raise RequestTimeout(
                f"Nothing came for {patience:g} seconds.", headers={"Connection": "close"}
            ) from None

    while (chunk := from_thread.run(following)) is not None:
        if chunk:
            yield chunk


def piece_of(header: str | None) -> Piece | None:
    """`Content-Range: bytes a-b/total` of a request; None: the body is the whole file."""
    if header is None:
        return None
    matched = _CONTENT_RANGE.fullmatch(header.strip())
    if matched is None:
        raise InvalidRequest("Content-Range must read `bytes first-last/total`.")
    first, last, total = (int(number) for number in matched.groups())
    if not first <= last < total:
        raise InvalidRequest("Content-Range must satisfy first ≤ last < total.")
    return Piece(first, last + 1, total)


def wanted_sha256(header: str | None) -> str | None:
    """The SHA-256 of the whole file that `Repr-Digest` (RFC 9530) asks for, in hex."""
    if header is None:
        return None
    matched = _SHA256.search(header)
    try:
        digest = base64.b64decode(matched.group(1), validate=True) if matched else b""
    except binascii.Error:
        digest = b""
    if len(digest) != 32:
        raise InvalidRequest("Repr-Digest must hold `sha-256=:…:`, the base64 of 32 bytes.")
    return digest.hex()


def binary_body(media_type: str) -> dict[str, Any]:
    """The OpenAPI entry of an endpoint that streams its body."""
    schema = {"type": "string", "format": "binary"}
    return {"requestBody": {"required": True, "content": {media_type: {"schema": schema}}}}

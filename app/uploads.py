"""A request body as chunks that a thread can iterate over: a file is never in memory as a whole."""

import base64
import binascii
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from anyio import from_thread
from fastapi import Request

from app.errors import InvalidRequest

_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})")
_SHA256 = re.compile(r"(?:^|,)\s*sha-256=:([A-Za-z0-9+/=]{1,64}):\s*(?:,|$)")


@dataclass(frozen=True)
class Piece:
    """Bytes start … end-1 of a file of `total`."""

    start: int
    end: int
    total: int


def body_chunks(request: Request) -> Iterator[bytes]:
    stream = request.stream()

    async def following() -> bytes | None:
        return await anext(stream, None)

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

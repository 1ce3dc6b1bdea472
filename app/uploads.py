"""A request body as chunks that a thread can iterate over: a file is never in memory as a whole."""

from collections.abc import Iterator
from typing import Any

from anyio import from_thread
from fastapi import Request


def body_chunks(request: Request) -> Iterator[bytes]:
    stream = request.stream()

    async def following() -> bytes | None:
        return await anext(stream, None)

    while (chunk := from_thread.run(following)) is not None:
        if chunk:
            yield chunk


def binary_body(media_type: str) -> dict[str, Any]:
    """The OpenAPI entry of an endpoint that streams its body."""
    schema = {"type": "string", "format": "binary"}
    return {"requestBody": {"required": True, "content": {media_type: {"schema": schema}}}}

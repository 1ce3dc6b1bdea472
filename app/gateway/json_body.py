"""JSON bodies of requests: how they are read, and the error for one that is refused while it is read."""

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from app.gateway.errors import InvalidRequest, ServiceError

MAX_FIELDS = 1000  # of one JSON object. The annotations of a manifest may be many.


class BodyRefused(HTTPException):
    """A body was refused while it was read. FastAPI passes on only this kind of exception from there."""

    def __init__(self, error: ServiceError) -> None:
        super().__init__(error.status, error.detail)
        self.error = error


class JsonRequest(Request):
    """A request whose JSON is refused at the first object with more than `MAX_FIELDS` fields.

    Validation would describe every field that it does not know. A body can have hundreds of thousands.
    """

    async def json(self) -> Any:
        """Return the parsed body."""
        if not hasattr(self, "_json"):
            self._json = json.loads(await self.body(), object_pairs_hook=_object)
        return self._json


class JsonRoute(APIRoute):
    """An endpoint with a JSON body."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the function that handles a request, and let it read a `JsonRequest`."""
        handle = super().get_route_handler()

        async def handle_json(request: Request) -> Response:
            return await handle(JsonRequest(request.scope, request.receive))

        return handle_json


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > MAX_FIELDS:
        raise BodyRefused(
            InvalidRequest(
                f"A JSON object in the body has more than {MAX_FIELDS} fields. Send only fields that the "
                "endpoint knows: see /docs."
            )
        )
    return dict(pairs)

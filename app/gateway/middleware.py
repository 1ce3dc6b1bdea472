"""What surrounds every request: an id, one log line, metrics, a limit on the body. Pure ASGI."""

import re
import time
from collections.abc import MutableMapping
from typing import Any

import structlog
from prometheus_client import CollectorRegistry, Counter, Histogram
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app import logs
from app.clock import new_id
from app.settings import Settings

log = logs.get("gateway")
BULK = ("POST", "/v1/erasures/bulk")
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels = ("method", "route", "status")
        self.requests = Counter("lethe_http_requests", "Answered requests.", labels, registry=self.registry)
        self.seconds = Histogram(
            "lethe_http_request_seconds", "Time to answer.", ("method", "route"), registry=self.registry
        )


class Surround:
    """Request id in and out, one log line and one count per request; the route, never the raw path."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else str(new_id())
        scope.setdefault("state", {})["request_id"] = request_id
        started, status = time.perf_counter(), 500

        async def tagged_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-ID"] = request_id
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                await self.app(scope, receive, tagged_send)
            finally:
                self._account(scope, status, time.perf_counter() - started)

    def _account(self, scope: MutableMapping[str, Any], status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "unmatched")
        method = scope["method"] if scope["method"] in METHODS else "other"  # a label grows with no caller
        self.metrics.requests.labels(method, route, status).inc()
        self.metrics.seconds.labels(method, route).observe(seconds)
        log.info("request", method=method, route=route, status=status, ms=round(seconds * 1e3, 2))


class BodyLimit:
    """Files come by PUT or in bulk and have their own limit; every other body is JSON.

    JSON is read into memory before anyone asks who sends it, so the larger limit is for those two alone.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app, self.settings = app, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        is_file = scope["method"] == "PUT" or (scope["method"], scope["path"]) == BULK
        limit = self.settings.max_upload_bytes if is_file else self.settings.max_body_bytes
        declared = Headers(scope=scope).get("content-length", "")
        announced = int(declared) if declared.isdecimal() else 0
        seen = 0

        async def limited_receive() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if max(seen, announced) > limit:
                raise HTTPException(413, f"At most {limit} bytes are taken here.")
            return message

        return await self.app(scope, limited_receive, send)

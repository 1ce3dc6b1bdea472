"""Middleware around every request, as plain ASGI: request id, log line, metrics, body size limit."""

import re
import time
from collections.abc import MutableMapping
from typing import Any

import structlog
from prometheus_client import CollectorRegistry, Counter, Histogram
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.core import logging
from app.core.clock import new_id
from app.core.settings import Settings
from app.gateway.metrics.catalogue import Metric

log = logging.get_logger("gateway")
BULK = ("POST", "/v1/erasures/bulk")
FORM_WITH_FILE = re.compile(r"/erasures/new|/models/[^/]+/files")  # pages of the dashboard
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Metrics:
    """The Prometheus metrics of HTTP requests."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(*Metric.HTTP_REQUESTS.value, registry=self.registry)
        self.seconds = Histogram(*Metric.HTTP_REQUEST_SECONDS.value, registry=self.registry)


class RequestContext:
    """Gives each request an id, writes one log line for it and counts it.

    Logs and metrics hold the route template, never the raw path, which may contain names.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request. The caller's `X-Request-ID` is used if it is well formed."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        requested = Headers(scope=scope).get("x-request-id", "")
        request_id = requested if _REQUEST_ID.fullmatch(requested) else str(new_id())
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
                self._record(scope, status, time.perf_counter() - started)

    def _record(self, scope: MutableMapping[str, Any], status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "unmatched")
        # Unknown methods share one label: callers must not be able to create new time series.
        method = scope["method"] if scope["method"] in METHODS else "other"
        self.metrics.requests.labels(method, route, status).inc()
        self.metrics.seconds.labels(method, route).observe(seconds)
        log.info("request", method=method, route=route, status=status, ms=round(seconds * 1e3, 2))


class BodyLimit:
    """Limits the size of request bodies.

    Files arrive by `PUT`, at the bulk endpoint or in a form of the dashboard and have the larger limit: they
    are never in memory as a whole. Every other body is JSON or a short form, which may be read into memory
    before the caller is authenticated, so its limit is small.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app, self.settings = app, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request. Answer 413 as soon as the declared or received size exceeds the limit."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        limit = self.settings.max_upload_bytes if _carries_file(scope) else self.settings.max_body_bytes
        header = Headers(scope=scope).get("content-length", "")
        declared = int(header) if header.isdecimal() else 0
        received = 0

        async def limited_receive() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if max(received, declared) > limit:
                raise HTTPException(413, f"This endpoint accepts at most {limit} bytes. Send a smaller body.")
            return message

        return await self.app(scope, limited_receive, send)


def _carries_file(scope: Scope) -> bool:
    method, path = scope["method"], scope["path"]
    return (
        method == "PUT"
        or (method, path) == BULK
        or (method == "POST" and FORM_WITH_FILE.fullmatch(path) is not None)
    )

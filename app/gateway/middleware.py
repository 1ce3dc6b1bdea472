"""Middleware around every request, as plain ASGI: request id, log line, metrics, body size limit."""

import re
import time
from collections.abc import MutableMapping
from typing import Any

import structlog
from prometheus_client import CollectorRegistry, Counter, Histogram
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.core import logging
from app.core.clock import new_id
from app.core.settings import Settings
from app.gateway.auth.guard import NO_KEY, identify
from app.gateway.errors import BodyTooLarge, Unauthenticated
from app.gateway.json_body import BodyRefused
from app.gateway.metrics.catalogue import Metric

log = logging.get_logger("gateway")
BULK = ("POST", "/v1/erasures/bulk")
# Lists of people, and manifests.
LARGE_BODY = re.compile(r"/v1/erasures|/v1/models(/[^/]+)?|/register")
OTHER_BODY_BYTES = 64 << 10
STRANGERS_BODY_BYTES = 16 << 10
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

    Files arrive by `PUT`, at the bulk endpoint or in a form of the dashboard and have the largest limit: they
    are never in memory as a whole. Every other body is JSON or a short form and is read into memory. FastAPI
    does so before the caller is authenticated, so this class looks at the API key as soon as a body is longer
    than `STRANGERS_BODY_BYTES`.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app, self.settings = app, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request. Answer 413 as soon as the declared or received size exceeds the limit."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        limit = body_limit(scope, self.settings)
        free = limit if carries_file(scope) or not _needs_key(scope) else STRANGERS_BODY_BYTES
        header = Headers(scope=scope).get("content-length", "")
        declared = int(header) if header.isdecimal() else 0
        received = 0

        async def limited_receive() -> Message:
            nonlocal received, free
            message = await receive()
            received += len(message.get("body", b""))
            if max(received, declared) > limit:
                detail = f"This endpoint accepts at most {limit} bytes. Send a smaller body."
                raise BodyRefused(BodyTooLarge(detail))
            if max(received, declared) > free:
                await _check_key(scope)
                free = limit
            return message

        return await self.app(scope, limited_receive, send)


def carries_file(scope: MutableMapping[str, Any]) -> bool:
    """Return whether the body of a request is a file, which is streamed."""
    method, path = scope["method"], scope["path"]
    return (
        method == "PUT"
        or (method, path) == BULK
        or (method == "POST" and FORM_WITH_FILE.fullmatch(path) is not None)
    )


def body_limit(scope: MutableMapping[str, Any], settings: Settings) -> int:
    """Return how many bytes the body of a request may have."""
    if carries_file(scope):
        return settings.max_upload_bytes
    large = LARGE_BODY.fullmatch(scope["path"]) is not None
    return settings.max_body_bytes if large else min(settings.max_body_bytes, OTHER_BODY_BYTES)


def _needs_key(scope: MutableMapping[str, Any]) -> bool:
    return bool(scope["path"].startswith(("/v1/", "/opendsr/")))


async def _check_key(scope: Scope) -> None:
    try:
        caller = await identify(Request(scope))
    except Unauthenticated as problem:
        raise BodyRefused(problem) from None
    if caller is None:
        raise BodyRefused(Unauthenticated(NO_KEY))

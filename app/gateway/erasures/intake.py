"""A short way for ordinary erasure requests, in front of the endpoint `POST /v1/erasures`.

Resolving parameters and dependencies takes FastAPI longer than all other work on a request. This route
therefore handles requests that need none of it itself: a known key with the right scope, JSON, a valid body
and few people. Everything else, errors included, goes to the endpoint, which also documents the route.
"""

from fastapi import FastAPI, Request
from pydantic import ValidationError
from starlette.routing import Match, Route, Router
from starlette.types import Message, Receive, Scope, Send

from app.db import audit_log
from app.gateway.auth.caller import Caller, CallerCache
from app.gateway.auth.guard import count_request
from app.gateway.auth.scopes import Scope as Permission
from app.gateway.erasures import service
from app.gateway.erasures.endpoints import INLINE_SUBJECTS, accepted, traced
from app.gateway.erasures.group_commit import GroupCommit
from app.gateway.erasures.schemas import ErasureRequest
from app.services import Services

PATH = "/v1/erasures"
SHORT_BODY_BYTES = 64 << 10
_PASSED_ON = "lethe.passed_on"
_PRINTABLE = frozenset(map(chr, range(0x20, 0x7F)))


def install(app: FastAPI) -> None:
    """Put the short way before the endpoint."""
    app.router.routes.insert(0, IntakeRoute(app.router))


def remove(app: FastAPI) -> None:
    """Let every request take the way of the endpoint, for comparison."""
    app.router.routes[:] = [route for route in app.router.routes if not isinstance(route, IntakeRoute)]


class IntakeRoute(Route):
    """The route of the short way. A request that was passed on does not match it again."""

    def __init__(self, router: Router) -> None:
        super().__init__(PATH, ShortWay(self, router), methods=["POST"], include_in_schema=False)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match `POST /v1/erasures`, once. Other methods belong to other endpoints."""
        if scope["type"] != "http" or scope["method"] != "POST" or _PASSED_ON in scope:
            return Match.NONE, {}
        return super().matches(scope)


class ShortWay:
    """An ASGI application that records ordinary requests and passes on all others."""

    def __init__(self, route: Route, router: Router) -> None:
        self._route, self._router = route, router

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        scope["route"] = self._route  # for logs and metrics
        request = Request(scope, receive)
        caller = _known_caller(request)
        if caller is None or not _is_ordinary(request):
            return await self._pass_on(scope, receive, send)
        content = await request.body()
        if len(content) > SHORT_BODY_BYTES:
            return await self._pass_on(scope, _replay(content, receive), send)
        try:
            body = ErasureRequest.model_validate_json(content)
        except ValidationError:
            return await self._pass_on(scope, _replay(content, receive), send)
        if len(body.subjects) > INLINE_SUBJECTS:
            return await self._pass_on(scope, _replay(content, receive), send)
        services: Services = request.state.services
        group_commit: GroupCommit = request.state.group_commit
        key = request.headers.get("idempotency-key")
        audit_log.set_actor(caller.actor)
        count_request(request, caller)
        with traced(request, services) as trace:
            prepared = service.prepare(services.vault, caller.tenant_id, body, body.subjects, key, trace)
            response = accepted(await group_commit.submit(prepared))
        return await response(scope, receive, send)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[_PASSED_ON] = True
        await self._router(scope, receive, send)


def _known_caller(request: Request) -> Caller | None:
    """Return the caller if its key was checked a moment ago and has the scope."""
    kind, _, credentials = request.headers.get("authorization", "").partition(" ")
    callers: CallerCache = request.state.callers
    caller = callers.get(credentials) if kind.lower() == "bearer" else None
    return caller if caller is not None and caller.may(Permission.ERASURES_WRITE) else None


def _is_ordinary(request: Request) -> bool:
    """Return whether the headers are such that the endpoint would accept them as they are."""
    keys = request.headers.getlist("idempotency-key")
    well_formed = not keys or (len(keys) == 1 and 1 <= len(keys[0]) <= 255 and _PRINTABLE.issuperset(keys[0]))
    return well_formed and request.headers.get("content-type", "") == "application/json"


def _replay(content: bytes, receive: Receive) -> Receive:
    """Return a `receive` that begins with a body that was read already."""
    pending: list[Message] = [{"type": "http.request", "body": content, "more_body": False}]

    async def replayed() -> Message:
        return pending.pop() if pending else await receive()

    return replayed

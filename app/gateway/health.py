"""Is it alive, is it ready, what are its numbers."""

from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from sqlalchemy import func, select

from app import logs, migrate
from app.access.guard import ServicesOf
from app.bootstrap import Services
from app.clock import now
from app.db.tables import WorkerSeen
from app.metrics.page import Page

router = APIRouter(tags=["health"])
log = logs.get("gateway")


Part = Literal["database", "redis", "storage", "worker"]


class Health(BaseModel):
    status: str


class Readiness(BaseModel):
    ready: bool
    parts: dict[str, str]


@router.get("/healthz")
async def healthz() -> Health:
    """The process answers."""
    return Health(status="ok")


@router.get("/readyz", responses={503: {"model": Readiness}})
def readyz(
    request: Request,
    services: ServicesOf,
    exclude: Annotated[list[Part], Query(description="Parts whose state does not matter here.")] = [],  # noqa: B006
) -> Response:
    """Database, Redis and storage answer, and a worker was seen lately.

    For requests to be taken the database is enough: a balancer may exclude the rest.
    """
    parts: dict[str, str] = {
        name: _state(check, services) for name, check in CHECKS.items() if name not in exclude
    }
    if request.state.drain.begun:
        parts["gateway"] = "about to stop"
    ready = all(state == "ok" for state in parts.values())
    body = Readiness(ready=ready, parts=parts).model_dump()
    return JSONResponse(
        body, status_code=200 if ready else 503, headers={} if ready else {"Retry-After": "2"}
    )


@router.get("/metrics", response_class=Response)
def metrics(request: Request) -> Response:
    """Prometheus text; behind a token of its own where the operator set one."""
    page: Page = request.state.metrics_page
    return Response(page.render(request.headers.get("authorization", "")), media_type=CONTENT_TYPE_LATEST)


def _state(check: Callable[[Services], str], services: Services) -> str:
    try:
        return check(services)
    except Exception as problem:  # whatever a part raises, it is not ready
        log.warning("not ready", problem=type(problem).__name__)
        return f"unreachable ({type(problem).__name__})"


def _database(services: Services) -> str:
    """Also behind: a gateway that is newer than its tables waits for `lethe migrate`."""
    with services.database.reading() as session:
        return "behind: run `lethe migrate`" if migrate.is_behind(session.connection()) else "ok"


def _redis(services: Services) -> str:
    return "ok" if services.redis.ping() else "no answer"


def _storage(services: Services) -> str:
    services.storage.check()
    return "ok"


def _worker(services: Services) -> str:
    horizon = now() - timedelta(seconds=services.settings.dead_after)
    with services.database.reading() as session:
        seen = session.scalar(select(func.count()).where(WorkerSeen.seen_at > horizon))
    return "ok" if seen else "no worker seen lately"


CHECKS: dict[Part, Callable[[Services], str]] = {
    "database": _database,
    "redis": _redis,
    "storage": _storage,
    "worker": _worker,
}

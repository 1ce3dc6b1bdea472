"""Liveness, readiness and metrics endpoints."""

from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, Field
from sqlalchemy import func, select

from app.core import logging
from app.core.clock import now
from app.db import schema
from app.db.tables import WorkerSeen
from app.gateway.auth.guard import ServicesOf
from app.gateway.metrics.exposition import MetricsPage
from app.services import Services

router = APIRouter(tags=["health"])
log = logging.get_logger("gateway")


Part = Literal["database", "redis", "storage", "worker"]


class Health(BaseModel):
    """The answer of a process that is alive."""

    status: str = Field(description="Always `ok`.")


class Readiness(BaseModel):
    """Whether the gateway and the parts it depends on can do their work."""

    ready: bool = Field(description="Whether every part is `ok`.")
    parts: dict[str, str] = Field(description="The state of each part: `ok`, or what is wrong with it.")


@router.get("/healthz", summary="Liveness")
async def healthz() -> Health:
    """Answer as long as the process is alive. Nothing else is checked."""
    return Health(status="ok")


@router.get("/readyz", summary="Readiness", responses={503: {"model": Readiness}})
def readyz(
    request: Request,
    services: ServicesOf,
    exclude: Annotated[list[Part], Query(description="Parts not to check.")] = [],  # noqa: B006
) -> Response:
    """Check that the database, Redis and the storage answer, and that a worker sent a heartbeat recently.

    The gateway needs only the database to accept erasure requests, so a load balancer may exclude the rest.
    Answers 503 if any part is not ready.
    """
    parts: dict[str, str] = {
        name: _state(check, services) for name, check in CHECKS.items() if name not in exclude
    }
    if request.state.drain.started:
        parts["gateway"] = "shutting down"
    ready = all(state == "ok" for state in parts.values())
    body = Readiness(ready=ready, parts=parts).model_dump()
    return JSONResponse(
        body, status_code=200 if ready else 503, headers={} if ready else {"Retry-After": "2"}
    )


@router.get("/metrics", summary="Metrics", response_class=Response)
def metrics(request: Request) -> Response:
    """Return the metrics in Prometheus text format. The operator may protect them with a separate token."""
    page: MetricsPage = request.state.metrics_page
    return Response(page.render(request.headers.get("authorization", "")), media_type=CONTENT_TYPE_LATEST)


def _state(check: Callable[[Services], str], services: Services) -> str:
    try:
        return check(services)
    except Exception as problem:  # whatever a check raises, its part is not ready
        log.warning("not ready", problem=type(problem).__name__)
        return f"unreachable ({type(problem).__name__})"


def _database(services: Services) -> str:
    """Check the database and its schema. A gateway newer than its tables waits for `lethe migrate`."""
    with services.database.reading() as session:
        return "behind: run `lethe migrate`" if schema.is_behind(session.connection()) else "ok"


def _redis(services: Services) -> str:
    return "ok" if services.redis.ping() else "no answer"


def _storage(services: Services) -> str:
    services.storage.check()
    return "ok"


def _worker(services: Services) -> str:
    horizon = now() - timedelta(seconds=services.settings.dead_after)
    with services.database.reading() as session:
        workers = session.scalar(select(func.count()).where(WorkerSeen.seen_at > horizon))
    return "ok" if workers else "no worker seen lately"


CHECKS: dict[Part, Callable[[Services], str]] = {
    "database": _database,
    "redis": _redis,
    "storage": _storage,
    "worker": _worker,
}

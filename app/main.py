"""The app factory, and the server around it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypedDict

import uvicorn
from fastapi import FastAPI

from app import health, logs, problems
from app.access.endpoints import router as access
from app.batches.endpoints import router as batches
from app.bootstrap import Services
from app.certificates.endpoints import router as certificates
from app.erasures.endpoints import router as erasures
from app.erasures.intake import Intake
from app.erasures.receipt_endpoints import router as receipts
from app.ledger.endpoints import router as ledger
from app.metrics.page import Page
from app.middleware import BodyLimit, Metrics, Surround
from app.models.endpoints import router as models
from app.models.file_endpoints import router as model_files
from app.reports.endpoints import router as reports
from app.serving import Drain, Server
from app.settings import Settings, SettingsError
from app.startup import check_deployment_key, refuse
from app.streams import Streams
from app.uploads import Uploads
from app.version import VERSION
from app.versions.endpoints import router as versions
from app.web.endpoints import router as dashboard
from app.web.session import Sessions
from app.webhooks.endpoints import router as webhooks

DESCRIPTION = """
Erases people from trained models, and proves it. Post an erasure, follow it, download the certified
checkpoint, and verify the certificate offline.

Errors are `application/problem+json` (RFC 9457). Lists are paged by cursor.
"""


ANSWER_SECONDS = 10  # for those who were let in before the door closed


class State(TypedDict):
    """What endpoints find on `request.state`."""

    services: Services
    drain: Drain
    metrics_page: Page
    intake: Intake
    uploads: Uploads
    streams: Streams
    sessions: Sessions


def create_app(settings: Settings, services: Services | None = None, drain: Drain | None = None) -> FastAPI:
    services, metrics = services or Services(settings), Metrics()
    page = Page(services, metrics)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[State]:
        async with Intake(services) as intake:
            yield State(
                services=services,
                drain=drain or Drain(),
                metrics_page=page,
                intake=intake,
                uploads=Uploads(settings),
                streams=Streams(),
                sessions=Sessions(services),
            )
        services.close()

    app = FastAPI(
        title="Lethe",
        version=VERSION,
        description=DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,  # these pages would load scripts from someone else's server
        redoc_url=None,
        responses={
            "4XX": {"description": "A problem.", "content": {"application/problem+json": {"schema": PROBLEM}}}
        },
    )
    # Routers are tried in order: the busiest first.
    for router in (
        erasures,
        receipts,
        batches,
        models,
        model_files,
        versions,
        certificates,
        reports,
        ledger,
        webhooks,
        access,
        health.router,
    ):
        app.include_router(router)
    if settings.dashboard:
        app.include_router(dashboard)
    problems.install(app)
    app.add_middleware(BodyLimit, settings=settings)
    app.add_middleware(Surround, metrics=metrics)
    return app


PROBLEM = {
    "type": "object",
    "required": ["type", "title", "status"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "instance": {"type": "string"},
    },
}


def serve(settings: Settings) -> None:
    logs.configure(settings)
    services = Services(settings)
    check_deployment_key(services)
    _ = services.tracer  # made now: the first request should not wait for its imports
    drain = Drain(settings.linger_seconds)
    try:
        app = create_app(settings, services, drain)
    except SettingsError as problem:
        raise refuse(str(problem)) from None
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=ANSWER_SECONDS,
    )
    server = Server(config, drain)
    server.run()
    if not server.started:  # as when the port is taken
        raise SystemExit(3)

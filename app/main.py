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
from app.middleware import BodyLimit, Metrics, Surround
from app.models.endpoints import router as models
from app.models.file_endpoints import router as model_files
from app.reports.endpoints import router as reports
from app.settings import Settings
from app.startup import check_deployment_key
from app.streams import Streams
from app.uploads import Uploads
from app.version import VERSION
from app.versions.endpoints import router as versions

DESCRIPTION = """
Erases people from trained models, and proves it. Post an erasure, follow it, download the certified
checkpoint, and verify the certificate offline.

Errors are `application/problem+json` (RFC 9457). Lists are paged by cursor.
"""


class State(TypedDict):
    """What endpoints find on `request.state`."""

    services: Services
    metrics: Metrics
    intake: Intake
    uploads: Uploads
    streams: Streams


def create_app(settings: Settings, services: Services | None = None) -> FastAPI:
    services, metrics = services or Services(settings), Metrics()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[State]:
        async with Intake(services) as intake:
            yield State(
                services=services,
                metrics=metrics,
                intake=intake,
                uploads=Uploads(settings),
                streams=Streams(),
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
        access,
        health.router,
    ):
        app.include_router(router)
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
    uvicorn.run(
        create_app(settings, services),
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=10,
    )

"""The FastAPI application and the server that runs it."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cache
from typing import Any, TypedDict

import uvicorn
from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.types import ASGIApp

from app.core import logging
from app.core.opendsr_key import OpenDsrKey, load_opendsr_key
from app.core.settings import Settings, SettingsError
from app.core.version import VERSION
from app.gateway import api_docs, error_handlers, health
from app.gateway.audit_log import router as audit_log
from app.gateway.auth.caller import CallerCache
from app.gateway.auth.endpoints import router as access
from app.gateway.auth.oidc import IdentityProvider
from app.gateway.auth.throttle import SignInThrottle
from app.gateway.batches.endpoints import router as batches
from app.gateway.certificates.endpoints import router as certificates
from app.gateway.certificates.verification import Verifier
from app.gateway.dashboard.endpoints import router as dashboard
from app.gateway.dashboard.sessions import Sessions
from app.gateway.erasures.endpoints import router as erasures
from app.gateway.erasures.group_commit import GroupCommit
from app.gateway.event_stream import MAX_STREAMS
from app.gateway.fides import router as fides
from app.gateway.metrics.exposition import MetricsPage
from app.gateway.middleware import BodyLimit, Metrics, RequestContext
from app.gateway.models.endpoints import router as models
from app.gateway.models.file_endpoints import router as model_files
from app.gateway.models.ledger import router as ledger
from app.gateway.models.representation_endpoints import router as representations
from app.gateway.models.versions import router as versions
from app.gateway.opendsr import router as opendsr
from app.gateway.rate_limits import RequestRates
from app.gateway.reports.endpoints import router as reports
from app.gateway.server import DrainState, Server, tune_interpreter
from app.gateway.server_protocol import LimitedHttp, RequestLimits
from app.gateway.tenant_slots import TenantSlots
from app.gateway.uploads import Uploads
from app.gateway.webhooks.endpoints import router as webhooks
from app.services import Services
from app.startup import check_deployment_key, refuse

DESCRIPTION = """ Erases people from trained models and proves it. Send an erasure request, follow its
batch, download the certified weights, and verify the certificate offline.

Errors are `application/problem+json` (RFC 9457). Lists are paged by cursor.
"""
TAGS = [
    {"name": "erasures", "description": "Requests to erase people from models, and the receipts for them."},
    {"name": "batches", "description": "Groups of erasures that a worker processes together."},
    {"name": "models", "description": "Models, their manifest and their files."},
    {
        "name": "representations",
        "description": "The library of representations, and downloads of a model's graph and tokenizer.",
    },
    {"name": "versions", "description": "The published weights of a model."},
    {"name": "certificates", "description": "Signed certificates, the certificate log and the public keys."},
    {"name": "reports", "description": "Evaluations, audits and membership tests."},
    {"name": "ledger", "description": "The privacy budget of a model: what was spent and what is left."},
    {"name": "webhooks", "description": "Signed messages to your own systems."},
    {"name": "access", "description": "API keys."},
    {"name": "audit log", "description": "Who did what: an append-only, hash-chained record."},
    {
        "name": "interoperability",
        "description": "Requests by OpenDSR and from Fides, which become erasures.",
    },
    {"name": "health", "description": "Liveness, readiness and metrics."},
]
PROBLEM = {
    "type": "object",
    "required": ["type", "title", "status"],
    "properties": {
        "type": {"type": "string", "description": "The kind of problem, as a URN."},
        "title": {"type": "string", "description": "The kind of problem, in a few words."},
        "status": {"type": "integer", "description": "The HTTP status."},
        "detail": {"type": "string", "description": "What happened, why, and what to do next."},
        "instance": {
            "type": "string",
            "description": "The request id, as a URN. The server's log has it too.",
        },
    },
}
SHUTDOWN_SECONDS = 10  # for requests that were accepted before the server closed

# Routers are tried in this order, so the busiest comes first.
ROUTERS = (
    erasures,
    batches,
    models,
    model_files,
    representations,
    versions,
    certificates,
    reports,
    ledger,
    webhooks,
    access,
    audit_log,
    opendsr,
    fides,
    health.router,
)


def _include(*routers: APIRouter) -> APIRouter:
    """Return one router with these in it.

    FastAPI prepares an included route at the first request and keeps what it prepared. The router is made
    once, so that the applications of one process share this work.
    """
    together = APIRouter(
        responses={
            "4XX": {
                "description": "The request failed. The body says why.",
                "content": {"application/problem+json": {"schema": PROBLEM}},
            }
        }
    )
    for router in routers:
        together.include_router(router)
    return together


API = _include(*ROUTERS, api_docs.router)
PAGES = _include(dashboard)


@cache
def describe_api() -> dict[str, Any]:
    """Generate the OpenAPI document. It takes a moment, and is the same for all gateways of one process."""
    return get_openapi(title="Lethe", version=VERSION, description=DESCRIPTION, routes=API.routes, tags=TAGS)


class Gateway(FastAPI):
    """The application, whose description is generated once."""

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document."""
        return describe_api()


class State(TypedDict):
    """The attributes of `request.state` that endpoints use."""

    services: Services
    callers: CallerCache
    drain: DrainState
    metrics_page: MetricsPage
    group_commit: GroupCommit
    uploads: Uploads
    streams: TenantSlots
    sessions: Sessions
    throttle: SignInThrottle
    rates: RequestRates
    opendsr_key: OpenDsrKey | None
    verifier: Verifier


def create_app(
    settings: Settings,
    services: Services | None = None,
    drain: DrainState | None = None,
    provider: IdentityProvider | None = None,
) -> FastAPI:
    """Build the gateway application. It closes `services` when it shuts down.

    Tests may pass an identity provider of their own. Raises `SettingsError` if its settings are wrong.
    """
    services, metrics = services or Services(settings, bounds_waits=True), Metrics()
    if provider is None and settings.oidc_issuer:
        provider = IdentityProvider(settings)
    opendsr_key = load_opendsr_key(settings)
    app = Gateway(
        lifespan=_lifespan(
            services, drain or DrainState(), MetricsPage(services, metrics), provider, opendsr_key
        ),
        docs_url=None,  # FastAPI's pages load scripts from a third-party server; see app.gateway.api_docs
        redoc_url=None,
        routes=[*API.routes, *(PAGES.routes if settings.dashboard else [])],
    )
    error_handlers.install(app)
    app.add_middleware(BodyLimit, settings=settings)
    app.add_middleware(RequestContext, metrics=metrics)
    return app


def _lifespan(
    services: Services,
    drain: DrainState,
    metrics_page: MetricsPage,
    provider: IdentityProvider | None,
    opendsr_key: OpenDsrKey | None,
) -> Callable[[FastAPI], AbstractAsyncContextManager[State]]:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[State]:
        callers = CallerCache()
        async with GroupCommit(services) as group_commit:
            yield State(
                services=services,
                callers=callers,
                drain=drain,
                metrics_page=metrics_page,
                group_commit=group_commit,
                uploads=Uploads(services.settings),
                streams=TenantSlots(MAX_STREAMS),
                sessions=Sessions(services, provider),
                throttle=SignInThrottle(services.settings.failed_sign_ins_per_minute),
                rates=RequestRates(services.settings),
                opendsr_key=opendsr_key,
                verifier=Verifier(services),
            )
        callers.close()
        services.close()

    return lifespan


def serve(settings: Settings) -> None:
    """Run the gateway until it is told to stop. Exit with code 3 if it cannot start."""
    logging.configure(settings)
    services = Services(settings, bounds_waits=True)
    check_deployment_key(services)
    _ = services.tracer  # created now, so that the first request does not wait for its imports
    drain = DrainState(settings.linger_seconds)
    try:
        app = create_app(settings, services, drain)
    except SettingsError as problem:
        raise refuse(str(problem)) from None
    server = build_server(app, settings, drain)
    tune_interpreter()
    server.run()
    if not server.started:  # for example, because the port is in use
        raise SystemExit(3)


def build_server(app: ASGIApp, settings: Settings, drain: DrainState) -> Server:
    """Return a server for the application that is not running yet."""
    limits = RequestLimits.of(settings)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=LimitedHttp.with_limits(limits),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    return Server(config, drain, limits)

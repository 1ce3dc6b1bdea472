"""The gateway as it is, and the two it is compared with.

real       the gateway
immediate  the same, but answers as soon as a request is validated and encrypted: no database
plain      the same request written the usual way: one transaction per request, in the thread pool
"""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import uvicorn
from fastapi import FastAPI, Header, Response

from app import logs
from app.access.guard import CanWriteErasures, ServicesOf
from app.erasures import service
from app.erasures.intake import Intake
from app.erasures.recording import Answer, Prepared, _body, record_group
from app.erasures.schemas import ErasureRequest
from app.errors import ServiceError
from app.main import create_app
from app.settings import Settings, load_settings


class Immediate(Intake):
    async def submit(self, prepared: Prepared) -> Answer:
        return Answer(_body(prepared, []), f"/v1/erasures/{prepared.erasure['id']}")


def build(kind: str, settings: Settings) -> FastAPI:
    app = create_app(settings)
    if kind == "immediate":
        _replace_intake(app)
    if kind == "plain":
        app.add_api_route("/v1/erasures", plain, methods=["POST"], status_code=202)
        app.router.routes.insert(0, app.router.routes.pop())  # the first that matches answers
    return app


def _replace_intake(app: FastAPI) -> None:
    original = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(inner: FastAPI) -> AsyncIterator[dict[str, object]]:
        async with original(inner) as state:
            assert state is not None
            yield {**state, "intake": Immediate(state["services"])}

    app.router.lifespan_context = lifespan


def plain(
    body: ErasureRequest,
    caller: CanWriteErasures,
    services: ServicesOf,
    idempotency_key: Annotated[str | None, Header()] = None,
) -> Response:
    prepared = service.prepare(services.vault, caller.tenant_id, body, body.subjects, idempotency_key)
    outcome = record_group(services.database, [prepared])[0]
    if isinstance(outcome, ServiceError):
        raise outcome
    headers = {"Location": outcome.location, "Retry-After": "5"}
    return Response(outcome.body, 202, headers, "application/json")


def main() -> None:
    settings = load_settings()
    logs.configure(settings)
    uvicorn.run(
        build(sys.argv[1], settings),
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
    )


if __name__ == "__main__":
    main()

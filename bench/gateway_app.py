"""The gateway, and the two variants it is compared with.

real       the gateway
immediate  answers as soon as a request is validated and encrypted, without the database
plain      writes each request in a transaction of its own, in the thread pool
"""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import uvicorn
from fastapi import FastAPI, Header, Response

from app.core import logging
from app.core.settings import Settings, load_settings
from app.gateway.auth.guard import CanWriteErasures, ServicesOf
from app.gateway.erasures import service
from app.gateway.erasures.group_commit import GroupCommit
from app.gateway.erasures.recording import Answer, PreparedErasure, answer_body, record_group
from app.gateway.erasures.schemas import ErasureRequest
from app.gateway.errors import ServiceError
from app.gateway.main import create_app
from app.gateway.server import tune_interpreter


class ImmediateAnswer(GroupCommit):
    """Answers a request as soon as it is prepared, without writing it."""

    async def submit(self, prepared: PreparedErasure) -> Answer:
        """Return the answer at once."""
        return Answer(answer_body(prepared, []), f"/v1/erasures/{prepared.erasure['id']}")


def build(kind: str, settings: Settings) -> FastAPI:
    """Build one of the variants."""
    app = create_app(settings)
    if kind == "immediate":
        _replace_group_commit(app)
    if kind == "plain":
        app.add_api_route("/v1/erasures", plain, methods=["POST"], status_code=202)
        app.router.routes.insert(0, app.router.routes.pop())  # the first matching route answers
    return app


def _replace_group_commit(app: FastAPI) -> None:
    original = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(inner: FastAPI) -> AsyncIterator[dict[str, object]]:
        async with original(inner) as state:
            assert state is not None
            yield {**state, "group_commit": ImmediateAnswer(state["services"])}

    app.router.lifespan_context = lifespan


def plain(
    body: ErasureRequest,
    caller: CanWriteErasures,
    services: ServicesOf,
    idempotency_key: Annotated[str | None, Header()] = None,
) -> Response:
    """Record a request in a transaction of its own."""
    prepared = service.prepare(services.vault, caller.tenant_id, body, body.subjects, idempotency_key)
    outcome = record_group(services, [prepared])[0]
    if isinstance(outcome, ServiceError):
        raise outcome
    headers = {"Location": outcome.location, "Retry-After": "5"}
    return Response(outcome.body, 202, headers, "application/json")


def main() -> None:
    """Serve the variant named on the command line."""
    settings = load_settings()
    logging.configure(settings)
    app = build(sys.argv[1], settings)
    tune_interpreter()  # as the gateway does
    uvicorn.run(
        app,
        host=settings.host,
        port=settings.port,
        log_config=None,
        access_log=False,
    )


if __name__ == "__main__":
    main()

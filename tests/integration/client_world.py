"""A real service for the tests of the client: gateway on loopback, worker in a thread, faulty proxy.

It uses SQLite only. Other tests run the API on both databases.
"""

import secrets
import shutil
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import structlog
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.core.settings import Settings
from app.gateway.auth.scopes import Scope as Permission
from app.gateway.main import create_app
from app.services import Services
from lethe import AsyncLethe, Lethe, Retry
from tests import eventually
from tests.integration.harness import MANIFEST, dataset, key_for
from tests.integration.model_api import work

JOB_SECONDS = 600.0  # a wait ends as soon as the job does
QUICK = Retry(times=4, first_pause=0.01, longest_pause=0.05)
POLICY = MANIFEST["policy"] | {"batch_subjects": 1000}
TOY = MANIFEST | {"policy": POLICY}


@dataclass
class Meddler:
    """Cuts, corrupts, loses or refuses responses between gateway and client, one trick per request."""

    app: ASGIApp
    tricks: list[str] = field(default_factory=list)
    on: str = "/checkpoint"
    seen: list[dict[str, str]] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].endswith(self.on):
            return await self.app(scope, receive, send)
        self.seen.append({name.decode(): value.decode() for name, value in scope["headers"]})
        trick = self.tricks.pop(0) if self.tricks else None
        return await self.app(scope, receive, self._sender(trick, send))

    def _sender(self, trick: str | None, send: Send) -> Send:
        async def send_with_trick(message: Message) -> None:
            body = message.get("body")
            if trick == "garble" and body:
                message["body"] = body[:-1] + bytes([body[-1] ^ 1])
            if trick == "cut" and body:
                await send({**message, "body": body[: len(body) // 2], "more_body": True})
                raise ConnectionAbortedError
            if trick == "lose" and message["type"] == "http.response.body":
                raise ConnectionAbortedError
            if trick == "refuse" and message["type"] == "http.response.start":
                headers = [*message["headers"], (b"retry-after", b"0")]
                message = {**message, "status": 503, "headers": headers}
            await send(message)

        return send_with_trick


@dataclass
class World:
    """A running service, and the means to disturb it."""

    url: str
    key: str
    services: Services
    meddler: Meddler
    worker: threading.Lock

    def sync(self, **options: Any) -> Lethe:
        return Lethe(self.url, self.key, retry=QUICK, **options)

    def asynchronous(self, **options: Any) -> AsyncLethe:
        return AsyncLethe(self.url, self.key, retry=QUICK, **options)

    def key_for(self, *scopes: Permission) -> str:
        return key_for(self.services, "clients", *scopes)["Authorization"].removeprefix("Bearer ")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, redis_url: str, sqlite_template: Path) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("client")
    shutil.copy(sqlite_template, folder / "lethe.db")
    settings = Settings(
        data_dir=folder / "data",
        database_url=f"sqlite:///{folder / 'lethe.db'}",
        redis_url=redis_url,
        queue_name=f"test-{secrets.token_hex(8)}",
        create_keys=True,
        webhook_intranet=True,  # so that tests can receive webhooks on loopback
    )
    services = Services(settings)
    meddler = Meddler(create_app(settings))
    before = structlog.get_config()
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())  # the tests read standard output
    key = key_for(services, "clients", Permission.ADMIN)["Authorization"].removeprefix("Bearer ")
    with serving(meddler) as url, _working(lambda: work(services)) as worker:
        yield World(url, key, services, meddler, worker)
    structlog.configure(**before)
    services.close()


@contextmanager
def serving(app: Any) -> Iterator[str]:
    """Serve an ASGI application on loopback and return its address."""
    server = uvicorn.Server(
        uvicorn.Config(app, port=0, log_config=None, access_log=False, timeout_graceful_shutdown=2)
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    eventually(lambda: server.started or not thread.is_alive(), every=0.01)
    assert server.started, "the gateway did not start"
    host, port = server.servers[0].sockets[0].getsockname()
    yield f"http://{host}:{port}"
    server.should_exit = True
    thread.join()


@contextmanager
def _working(step: Callable[[], None]) -> Iterator[threading.Lock]:
    """Run a worker in this process during the tests. It pauses while a test holds its lock.

    A job that raises would leave the tests waiting in vain, so its error is printed at once and fails the
    last of them.
    """
    stopping, lock = threading.Event(), threading.Lock()
    errors: list[Exception] = []

    def loop() -> None:
        while not stopping.wait(0.1):
            with lock:
                try:
                    step()
                except Exception as error:
                    traceback.print_exc()
                    errors.append(error)

    thread = threading.Thread(target=loop)
    thread.start()
    yield lock
    stopping.set()
    thread.join()
    assert errors == [], "a job of these tests raised"


def register(lethe: Lethe, name: str, **policy: Any) -> None:
    """Register a small model with a holdout, and wait until it is ready."""
    lethe.models.create(name, TOY | {"policy": POLICY | policy})
    lethe.models.upload_part(name, "part0", dataset())
    lethe.models.upload_holdout(name, "h0", dataset(rows=60, subjects=60, seed=8))
    lethe.models.validate(name)
    lethe.models.wait_ready(name, timeout=JOB_SECONDS)

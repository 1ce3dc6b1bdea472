"""What the client's tests share: a real gateway on loopback, a worker in a thread, and someone in between.

SQLite alone: the API itself is tested on both databases elsewhere.
"""

import secrets
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import structlog
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.access.scopes import Scope as Permission
from app.bootstrap import Services
from app.main import create_app
from app.settings import Settings
from client import AsyncLethe, Lethe, Retry
from tests.integration.harness import MANIFEST, dataset, key_for
from tests.integration.model_api import work

QUICK = Retry(times=4, first=0.01, longest=0.05)
POLICY = MANIFEST["policy"] | {"batch_subjects": 1000}
TOY = MANIFEST | {"policy": POLICY}


@dataclass
class Meddler:
    """Between client and gateway: cuts, garbles, or loses what is sent. Gives up one trick per request."""

    app: ASGIApp
    tricks: list[str] = field(default_factory=list)
    on: str = "/checkpoint"
    seen: list[dict[str, str]] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].endswith(self.on):
            return await self.app(scope, receive, send)
        self.seen.append({name.decode(): value.decode() for name, value in scope["headers"]})
        trick = self.tricks.pop(0) if self.tricks else None
        return await self.app(scope, receive, self._sending(trick, send))

    def _sending(self, trick: str | None, send: Send) -> Send:
        async def meddled(message: Message) -> None:
            if trick == "garble" and message.get("body"):
                message["body"] = message["body"][:-1] + bytes([message["body"][-1] ^ 1])
            if trick == "cut" and message.get("body"):
                await send(
                    message | {"body": message["body"][: len(message["body"]) // 2], "more_body": True}
                )
                raise ConnectionAbortedError
            if trick == "lose" and message["type"] == "http.response.body":
                raise ConnectionAbortedError
            if trick == "refuse" and message["type"] == "http.response.start":
                message = message | {"status": 503, "headers": [*message["headers"], (b"retry-after", b"0")]}
            await send(message)

        return meddled


@dataclass
class World:
    url: str
    key: str
    services: Services
    meddler: Meddler
    worker: threading.Lock

    def sync(self, **options: Any) -> Lethe:
        return Lethe(self.url, self.key, retry=QUICK, **options)

    def awaiting(self, **options: Any) -> AsyncLethe:
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
    )
    services = Services(settings)
    meddler = Meddler(create_app(settings))
    before = structlog.get_config()
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())  # standard output is looked at
    key = key_for(services, "clients", Permission.ADMIN)["Authorization"].removeprefix("Bearer ")
    with _serving(meddler) as url, _working(lambda: work(services)) as worker:
        yield World(url, key, services, meddler, worker)
    structlog.configure(**before)
    services.close()


@contextmanager
def _serving(app: Any) -> Iterator[str]:
    server = uvicorn.Server(
        uvicorn.Config(app, port=0, log_config=None, access_log=False, timeout_graceful_shutdown=2)
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the gateway did not start"
    host, port = server.servers[0].sockets[0].getsockname()
    yield f"http://{host}:{port}"
    server.should_exit = True
    thread.join()


@contextmanager
def _working(step: Callable[[], None]) -> Iterator[threading.Lock]:
    """A worker in this process for as long as the tests run; it stands still while its lock is held."""
    stopping, lock = threading.Event(), threading.Lock()

    def loop() -> None:
        while not stopping.wait(0.1):
            with lock:
                step()

    thread = threading.Thread(target=loop)
    thread.start()
    yield lock
    stopping.set()
    thread.join()


def register(lethe: Lethe, name: str, **policy: Any) -> None:
    """A small model with a holdout, ready."""
    lethe.models.create(name, TOY | {"policy": POLICY | policy})
    lethe.models.upload_part(name, "part0", dataset())
    lethe.models.upload_holdout(name, "h0", dataset(rows=60, subjects=60, seed=8))
    lethe.models.validate(name)
    lethe.models.wait_ready(name, timeout=60)

"""Requests that give the dispatcher work wake it. Nothing depends on that: SQL knows the work."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from uuid import uuid4

import pytest
from fastapi.testclient import TestClient
from redis.exceptions import RedisError

from app.core import queue
from app.core.queue import WakeUp
from app.gateway.auth.scopes import Scope
from app.gateway.main import create_app
from app.services import Services
from tests import eventually
from tests.integration.harness import MANIFEST, key_for

LONG = 600.0


@pytest.fixture
def sleeper(services: Services) -> Iterator[Future[float]]:
    """Wait for a call in another thread, as a dispatcher does, and return how long that took."""
    wake_up = WakeUp(services.redis, services.settings.queue_name)
    stopped = threading.Event()

    def sleep() -> float:
        began = time.monotonic()
        wake_up.wait(LONG, stopped=stopped.is_set)
        return time.monotonic() - began

    with ThreadPoolExecutor(1) as pool:
        slept = pool.submit(sleep)
        channel = f"lethe:wake:{services.settings.queue_name}"
        eventually(lambda: dict(services.redis.pubsub_numsub(channel)).get(channel.encode()) == 1)
        yield slept
        stopped.set()
    wake_up.close()


def _create(gateway: TestClient, admin: dict[str, str]) -> None:
    model = {"name": "toy", "manifest": MANIFEST}
    assert gateway.post("/v1/models", json=model, headers=admin).status_code == 201


def test_a_flush_wakes_the_dispatcher(services: Services, sleeper: Future[float]) -> None:
    admin = key_for(services, "t", Scope.ADMIN)
    with TestClient(create_app(services.settings, services)) as gateway:
        _create(gateway, admin)
        assert not sleeper.done()
        assert gateway.post("/v1/models/toy/flush", headers=admin).status_code == 202
        assert sleeper.result(timeout=LONG / 2) < LONG / 2


def test_a_flush_without_redis_is_answered(services: Services) -> None:
    admin = key_for(services, "t", Scope.ADMIN)
    elsewhere = services.settings.model_copy(update={"redis_url": "redis://127.0.0.1:1/0"})
    with TestClient(create_app(elsewhere)) as gateway:
        _create(gateway, admin)
        assert gateway.post("/v1/models/toy/flush", headers=admin).status_code == 202


def test_a_wait_ends_when_its_owner_stops() -> None:
    class Silent:
        """A server without calls."""

        def __init__(self) -> None:
            self.asked = 0

        def pubsub(self, **_: object) -> "Silent":
            return self

        def subscribe(self, _: str) -> None: ...

        def get_message(self, timeout: float) -> None:
            assert timeout <= 1.0, "a stop would be noticed too late"
            self.asked += 1

    server = Silent()
    WakeUp(server, str(uuid4())).wait(LONG, stopped=lambda: server.asked == 3)  # type: ignore[arg-type]
    assert server.asked == 3


def test_an_unavailable_server_is_reported_and_tried_again() -> None:
    wake_up = WakeUp(queue.connect("redis://127.0.0.1:1/0"), "q")
    wake_up.call()
    for _ in range(2):
        with pytest.raises(RedisError):
            wake_up.wait(LONG, stopped=lambda: False)

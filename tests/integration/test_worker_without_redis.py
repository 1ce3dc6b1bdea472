"""A worker waits while Redis is away, keeps what it has imported, and stops at once when asked to."""

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from structlog.testing import capture_logs

from app.core.settings import Settings
from app.services import Services
from tests.integration.harness import ATTEMPTS
from worker import main
from worker.queue import WorkerRuntime

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@pytest.fixture(autouse=True)
def signals_are_restored() -> Iterator[None]:
    before = [(number, signal.getsignal(number)) for number in SIGNALS]
    yield
    for number, handler in before:
        signal.signal(number, handler)


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[WorkerRuntime]:
    """What a worker has whose Redis is at a port on which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        settings = Settings(data_dir=tmp_path, redis_url=f"redis://127.0.0.1:{taken.getsockname()[1]}")
        services = Services(settings)
        yield WorkerRuntime(services, ATTEMPTS)
        services.close()


def test_it_waits_with_growing_pauses_until_it_is_asked_to_stop(runtime: WorkerRuntime) -> None:
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 9:
            os.kill(os.getpid(), signal.SIGTERM)

    with capture_logs() as lines:
        assert main.take_jobs(runtime, pause)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0, 30.0]
    assert [line["event"] for line in lines if line["log_level"] == "warning"] == ["queue unavailable"]


def test_it_works_again_when_redis_is_back(
    runtime: WorkerRuntime, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each try makes a new connection, with the same fork server and the same memory of being stopped."""
    tries: list[main.Worker] = []

    def work(worker: main.Worker, **_: object) -> bool:
        tries.append(worker)
        if len(tries) < 3:
            raise RedisConnectionError("gone")
        main.Worker.bootstrap(worker, "ERROR")
        worker.teardown()
        runtime.drain.begin()
        return False

    runtime.services.__dict__["redis"] = Redis.from_url(redis_url)
    monkeypatch.setattr(main.Worker, "work", work)
    with capture_logs() as lines:
        assert main.take_jobs(runtime, lambda _: None)
    assert len(tries) == 3
    assert {id(worker.runtime.attempts) for worker in tries} == {id(ATTEMPTS)}
    assert "queue available again" in [line["event"] for line in lines]


def test_an_error_that_is_not_of_redis_ends_it(
    runtime: WorkerRuntime, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(worker: main.Worker, **_: object) -> bool:
        worker.failed = True
        return False

    runtime.services.__dict__["redis"] = Redis.from_url(redis_url)
    monkeypatch.setattr(main.Worker, "work", work)
    assert not main.take_jobs(runtime, lambda _: None)

"""Someone who can write to Redis can delay work, but cannot make a worker run code."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from rq import Callback
from rq.registry import StartedJobRegistry

from app.core.clock import new_id
from app.db.transitions import RUN
from app.services import Services
from tests.integration.harness import ATTEMPTS
from tests.integration.job_world import World
from worker import queue
from worker.fork_server import ForkServer
from worker.main import Worker

IDS = (str(new_id()), str(new_id()))


def trap(*_: object) -> None:
    """Stand where a hostile message points. The fixture `calls` records calls of it and of `run`."""
    raise AssertionError("a message chose the function to run")


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The arguments of every call of `worker.queue.run` or of the trap during this test."""
    recorded: list[object] = []

    def record(*arguments: object) -> None:
        recorded.append(arguments)

    monkeypatch.setattr(queue, "run", record)
    monkeypatch.setattr(f"{__name__}.trap", record)
    return recorded


@pytest.mark.parametrize(
    ("function", "given"),
    [
        ("os.system", {"args": ("touch {marker}",)}),
        ("tests.integration.test_worker_messages.trap", {"args": IDS}),
        ("worker.queue.open_queue", {"args": IDS}),
        ("worker.queue.unlearn", {"args": IDS}),
        (RUN, {"args": (IDS[0], "--help")}),
        (RUN, {"args": (*IDS, IDS[0])}),
        (RUN, {"args": ([IDS[0]], IDS[1])}),
        (RUN, {"args": IDS[:1], "kwargs": {"token": IDS[1]}}),
        (RUN, {"args": IDS, "on_success": Callback(f"{__name__}.trap")}),
        (RUN, {"args": IDS, "on_failure": Callback(f"{__name__}.trap")}),
    ],
)
def test_a_foreign_message_is_dropped_without_being_run(
    services: Services, tmp_path: Path, calls: list[object], function: str, given: dict[str, Any]
) -> None:
    marker = tmp_path / "marker"
    given = given | {"args": tuple(_filled(argument, marker) for argument in given["args"])}
    job = services.queue.enqueue_call(function, **given)
    assert Worker.of(services, ATTEMPTS).work(burst=True, logging_level="ERROR")
    assert not calls
    assert not marker.exists()
    assert not services.redis.exists(job.key)
    assert not services.redis.exists(services.queue.intermediate_queue_key)


def test_a_message_from_a_dispatcher_is_run(services: Services, calls: list[object]) -> None:
    services.queue.enqueue_call(RUN, args=IDS)
    worker = Worker.of(services, ATTEMPTS)
    worker.work(burst=True, logging_level="ERROR")
    assert calls == [(worker.runtime, *IDS)]


def test_a_duplicate_message_starts_no_second_process(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    started: list[object] = []

    class Attempts(ForkServer):
        def run(self, *arguments: str, env: Mapping[str, str] | None = None) -> _Ended:
            started.append(arguments)
            return _Ended()

        def run_idle(self, *arguments: str) -> None:
            """Prepare nothing."""

    runtime = queue.WorkerRuntime(services, Attempts("worker.attempt"))
    world = World(services)
    world.ask(0, subjects=1)
    world.flush(0)
    world.dispatchers[0].round()
    (message,) = world.queue.messages
    ids = (str(message.job_id), str(message.token))
    queue.run(runtime, *ids)
    assert len(started) == 1
    assert world.claim(message)
    queue.run(runtime, *ids)
    assert len(started) == 1


class _Ended:
    """A child process that has ended well."""

    returncode = 0

    def wait(self, _: float) -> bool:
        return True

    def terminate(self) -> None:
        raise AssertionError("it has ended")

    def kill(self) -> None:
        raise AssertionError("it has ended")


def test_the_callback_of_an_abandoned_message_is_not_called(services: Services, calls: list[object]) -> None:
    """RQ calls it during maintenance, without executing the job."""
    job = services.queue.enqueue_call(RUN, args=IDS, on_failure=Callback(f"{__name__}.trap"))
    services.queue.remove(job)
    started = StartedJobRegistry(queue=services.queue)
    redis: Redis = services.redis
    redis.zadd(started.key, {f"{job.id}:x": 1})
    Worker.of(services, ATTEMPTS).clean_registries()
    assert redis.zcard(started.key) == 0
    assert not calls


def _filled(argument: object, marker: Path) -> object:
    return argument.format(marker=marker) if isinstance(argument, str) else argument

"""Whoever can write to Redis can delay work; they cannot have code run by a worker."""

from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from rq import Callback
from rq.registry import StartedJobRegistry

from app import process
from app.bootstrap import Services
from app.clock import new_id
from tests.integration.job_world import World
from worker import jobs
from worker.main import Worker

IDS = (str(new_id()), str(new_id()))
ran: list[object] = []


def trap(*arguments: object) -> None:
    ran.append(arguments)


@pytest.fixture(autouse=True)
def nothing_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    ran.clear()
    monkeypatch.setattr(jobs, "_run_attempt", trap)


@pytest.mark.parametrize(
    ("function", "given"),
    [
        ("os.system", {"args": ("touch {marker}",)}),
        ("tests.integration.test_worker_messages.trap", {"args": IDS}),
        ("worker.jobs.use", {"args": IDS}),
        ("worker.jobs.unlearn", {"args": (IDS[0], "--help")}),
        ("worker.jobs.unlearn", {"args": (*IDS, IDS[0])}),
        ("worker.jobs.unlearn", {"args": ([IDS[0]], IDS[1])}),
        ("worker.jobs.unlearn", {"args": IDS[:1], "kwargs": {"token": IDS[1]}}),
        ("worker.jobs.unlearn", {"args": IDS, "on_success": Callback(f"{__name__}.trap")}),
        ("worker.jobs.unlearn", {"args": IDS, "on_failure": Callback(f"{__name__}.trap")}),
    ],
)
def test_a_foreign_message_is_dropped_without_being_run(
    services: Services, tmp_path: Path, function: str, given: dict[str, Any]
) -> None:
    marker = tmp_path / "marker"
    given = given | {"args": tuple(_filled(argument, marker) for argument in given["args"])}
    job = services.queue.enqueue_call(function, **given)
    assert Worker.of(services).work(burst=True, logging_level="ERROR")
    assert not ran
    assert not marker.exists()
    assert not services.redis.exists(job.key)
    assert not services.redis.exists(services.queue.intermediate_queue_key)


def test_our_own_message_is_run(services: Services) -> None:
    services.queue.enqueue_call("worker.jobs.unlearn", args=IDS)
    Worker.of(services).work(burst=True, logging_level="ERROR")
    assert ran == [IDS]


def test_a_message_that_comes_again_starts_no_second_process(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    started: list[object] = []
    monkeypatch.setattr(process, "spawn", lambda command: started.append(command) or _Ended())
    jobs.use(services)
    world = World(services)
    world.ask(0, subjects=1)
    world.flush(0)
    world.dispatchers[0].round()
    (message,) = world.wire.messages
    ids = (str(message.job_id), str(message.token))
    jobs.unlearn(*ids)
    assert len(started) == 1
    assert world.claim(message)
    jobs.unlearn(*ids)
    assert len(started) == 1


class _Ended:
    returncode = 0

    def wait(self, _: float) -> int:
        return 0


def test_the_callback_of_an_abandoned_message_is_not_called(services: Services) -> None:
    """RQ calls it while it tidies up, without any job being executed."""
    job = services.queue.enqueue_call(
        "worker.jobs.unlearn", args=IDS, on_failure=Callback(f"{__name__}.trap")
    )
    services.queue.remove(job)
    started = StartedJobRegistry(queue=services.queue)
    redis: Redis = services.redis
    redis.zadd(started.key, {f"{job.id}:x": 1})
    Worker.of(services).clean_registries()
    assert redis.zcard(started.key) == 0
    assert not ran


def _filled(argument: object, marker: Path) -> object:
    return argument.format(marker=marker) if isinstance(argument, str) else argument

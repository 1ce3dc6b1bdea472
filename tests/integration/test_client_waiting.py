"""Waiting with the client against a real service: by the stream of changes, and by polling without it."""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import httpx
import pytest
from sqlalchemy import update

from app.db.states import TaskState
from app.db.tables import Task
from app.gateway import event_stream
from app.gateway.auth.scopes import Scope
from app.gateway.event_stream import EventStream
from app.gateway.tenant_slots import TenantSlots
from lethe import AsyncLethe, Lethe, NotFound, TimedOut
from lethe.client import changes
from lethe.client.responses import Erasure, ErasureProgress
from tests import eventually
from tests.integration.client_world import World, register, world

__all__ = ["world"]


class Traffic:
    """Records the paths that a client requests."""

    def __init__(self, client: Lethe | AsyncLethe) -> None:
        self.paths: list[str] = []
        if isinstance(client, Lethe):
            client.http.event_hooks["request"].append(self._record)
        else:
            client.http.event_hooks["request"].append(self._record_later)

    def _record(self, request: httpx.Request) -> None:
        self.paths.append(request.url.path)

    async def _record_later(self, request: httpx.Request) -> None:
        self._record(request)


@pytest.fixture(scope="module")
def lethe(world: World) -> Iterator[Lethe]:
    with world.sync() as client:
        register(client, "toy")
        yield client


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every stream of changes is refused, as it is when all of a gateway's streams are taken."""

    def refuse(_: TenantSlots, tenant: UUID, lines: Any) -> EventStream:
        return EventStream(TenantSlots(0), tenant, lines)

    monkeypatch.setattr(event_stream, "EventStream", refuse)


def _complete(world: World, erasure: Erasure) -> None:
    with world.services.database.writing() as session:
        session.execute(update(Task).where(Task.erasure_id == erasure.id).values(state=TaskState.COMPLETED))


def test_waiting_for_an_erasure_takes_one_request(world: World, lethe: Lethe) -> None:
    erasure = lethe.erasures.create(["s1"], models=["toy"])
    seen: list[ErasureProgress] = []
    with world.sync() as waiting, ThreadPoolExecutor(1) as pool:
        traffic = Traffic(waiting)
        result = pool.submit(waiting.erasures.wait, erasure.id, timeout=60, on_change=seen.append)
        eventually(lambda: seen)
        _complete(world, erasure)
        assert result.result().state == "completed"
    assert traffic.paths == [f"/v1/erasures/{erasure.id}/changes"]
    assert [progress.erasure.state for progress in seen] == ["received", "completed"]


def test_waiting_asynchronously_takes_one_request(world: World, lethe: Lethe) -> None:
    erasure = lethe.erasures.create(["s1"], models=["toy"])

    async def run() -> list[str]:
        async with world.asynchronous() as client:
            traffic = Traffic(client)
            async for progress in client.erasures.follow(erasure.id, timeout=60):
                if progress.erasure.state == "received":
                    await asyncio.to_thread(_complete, world, erasure)
        return traffic.paths

    assert asyncio.run(run()) == [f"/v1/erasures/{erasure.id}/changes"]


def test_waiting_for_something_that_has_ended_returns_at_once(world: World, lethe: Lethe) -> None:
    erasure = lethe.erasures.create(["s1"], models=["toy"])
    _complete(world, erasure)
    traffic = Traffic(lethe)
    assert lethe.erasures.wait(erasure.id).state == "completed"
    assert traffic.paths == [f"/v1/erasures/{erasure.id}/changes"]


def test_registrations_batches_and_reports_are_waited_for_by_their_streams(
    world: World, lethe: Lethe
) -> None:
    traffic = Traffic(lethe)
    register(lethe, "streamed")
    erasure = lethe.erasures.create(["s1"], models=["streamed"])
    lethe.models.flush("streamed")
    done = lethe.erasures.wait(erasure.id, timeout=60)
    batch_id, certificate_id = done.tasks[0].batch_id, done.tasks[0].certificate_id
    assert batch_id is not None
    assert certificate_id is not None
    lethe.batches.wait(batch_id, timeout=60)
    evaluation = lethe.evaluations.wait("streamed", lethe.evaluations.start("streamed").id, timeout=60)
    audit = lethe.audits.wait(certificate_id, lethe.audits.start(certificate_id).id, timeout=60)
    assert [path for path in traffic.paths if path.endswith("/changes")] == [
        "/v1/models/streamed/changes",
        f"/v1/erasures/{erasure.id}/changes",
        f"/v1/batches/{batch_id}/changes",
        f"/v1/models/streamed/evaluations/{evaluation.id}/changes",
        f"/v1/certificates/{certificate_id}/audits/{audit.id}/changes",
    ]
    polled = {"/v1/models/streamed", f"/v1/erasures/{erasure.id}", f"/v1/batches/{batch_id}"}
    assert not polled & set(traffic.paths)


def test_a_refused_stream_is_replaced_by_polling(
    world: World, lethe: Lethe, refused: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "FIRST_POLL", 0.01)
    erasure = lethe.erasures.create(["s1"], models=["toy"])
    seen: list[ErasureProgress] = []
    with world.sync() as waiting, ThreadPoolExecutor(1) as pool:
        traffic = Traffic(waiting)
        result = pool.submit(waiting.erasures.wait, erasure.id, timeout=60, on_change=seen.append)
        eventually(lambda: seen)
        _complete(world, erasure)
        assert result.result().state == "completed"
    assert traffic.paths.count(f"/v1/erasures/{erasure.id}/changes") == 1
    assert traffic.paths.count(f"/v1/erasures/{erasure.id}") >= 2


def test_a_stream_that_is_cut_is_resumed_after_the_last_event(world: World, lethe: Lethe) -> None:
    """The first answer breaks off within the event, so nothing of it counts. The second is complete."""
    erasure = lethe.erasures.create(["s1"], models=["toy"])
    _complete(world, erasure)
    world.meddler.on, world.meddler.tricks = "/changes", ["cut"]
    try:
        assert lethe.erasures.wait(erasure.id, timeout=60).state == "completed"
        assert len(world.meddler.seen) >= 2
    finally:
        world.meddler.on = "/checkpoint"


def test_an_unchanged_resource_is_not_sent_again(world: World, lethe: Lethe) -> None:
    erasure = lethe.erasures.create(["s1"], models=["toy"])
    url = f"/v1/erasures/{erasure.id}/changes"
    first = lethe.http.get(url, params={"timeout": 0.01})
    (last,) = (line.removeprefix("id: ") for line in first.text.splitlines() if line.startswith("id: "))
    again = lethe.http.get(url, params={"timeout": 0.01}, headers={"Last-Event-ID": last})
    assert (again.status_code, again.text) == (200, "")
    _complete(world, erasure)
    changed = lethe.http.get(url, headers={"Last-Event-ID": last})
    assert '"state":"completed"' in changed.text


def test_the_timeout_holds_while_the_stream_is_silent(lethe: Lethe) -> None:
    erasure = lethe.erasures.create(["s1"], models=["toy"])
    started = time.monotonic()
    with pytest.raises(TimedOut, match="received"):
        lethe.erasures.wait(erasure.id, timeout=0.5)
    assert time.monotonic() - started >= 0.5


def test_more_waits_than_stream_slots_share_the_client_with_polls(
    world: World, lethe: Lethe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "FIRST_POLL", 0.01)
    erasures = [lethe.erasures.create([f"s{n}"], models=["toy"]) for n in range(3)]
    seen: dict[Any, ErasureProgress] = {}
    with world.sync() as waiting, ThreadPoolExecutor(3) as pool:
        for slot in range(changes.MOST_STREAMS - 1):  # leaves one
            assert waiting.erasures._slots.take(), slot
        traffic = Traffic(waiting)
        results = [
            pool.submit(
                waiting.erasures.wait,
                erasure.id,
                timeout=60,
                on_change=lambda progress: seen.update({progress.erasure.id: progress}),
            )
            for erasure in erasures
        ]
        eventually(lambda: len(seen) == 3)
        for erasure in erasures:
            _complete(world, erasure)
        assert {result.result().state for result in results} == {"completed"}
    assert sum(path.endswith("/changes") for path in traffic.paths) == 1


def test_a_key_that_may_only_read_erasures_can_follow_them(world: World, lethe: Lethe) -> None:
    erasure = lethe.erasures.create(["s1"], models=["toy"])
    lethe.models.flush("toy")
    with Lethe(world.url, world.key_for(Scope.ERASURES_READ)) as reader:
        steps = list(reader.erasures.follow(erasure.id, timeout=60))
    assert steps[-1].erasure.state == "completed"
    assert all(step.batches == () for step in steps)


def test_an_unknown_erasure_is_not_found(lethe: Lethe) -> None:
    with pytest.raises(NotFound):
        lethe.erasures.wait("0199f000-0000-7000-8000-000000000000", timeout=60)

"""A batch can be cancelled until its noise is drawn. It is then on hold, and no erasure is lost."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from app.db.states import BatchState
from app.db.tables import Batch, BatchEvent, Version
from app.db.transitions import TokenLost
from app.dispatcher.loop import Dispatcher
from app.gateway.batches import service
from app.gateway.errors import Conflict
from app.services import Services
from tests.integration.harness import dataset
from tests.integration.job_world import Attempt, World
from tests.integration.model_api import Api, Headers, registered, work
from worker.batch import run

RACES = 8


@pytest.fixture
def ready(gateway: TestClient, admin: Headers, services: Services) -> Api:
    return registered(Api(gateway, admin), services)


def _sealed(api: Api, services: Services) -> str:
    api.erase("s1", "s2")
    Dispatcher(services).seal_due()
    with services.database.reading() as session:
        return str(session.scalars(select(Batch.id).where(Batch.state == BatchState.SEALED)).one())


def _post(api: Api, batch_id: str, verb: str, status: int = 202) -> Any:
    answer = api.gateway.post(f"/v1/batches/{batch_id}/{verb}", headers=api.headers)
    assert answer.status_code == status, answer.text
    return answer.json()


def _open_erasure(api: Api) -> Any:
    (erasure,) = api.gateway.get("/v1/erasures", headers=api.headers).json()["items"]
    return erasure["state"]


def _during(
    stage: str, monkeypatch: pytest.MonkeyPatch, act: Callable[[], Any], *, after: bool = False
) -> None:
    """Call a function just before a stage of the pipeline, or just after it."""
    original = getattr(run, stage)

    def disturbed(*args: Any, **kwargs: Any) -> Any:
        if not after:
            act()
        made = original(*args, **kwargs)
        if after:
            act()
        return made

    monkeypatch.setattr(run, stage, disturbed)


def test_a_batch_cancelled_before_it_runs_is_held_until_it_is_tried_again(
    ready: Api, services: Services
) -> None:
    batch_id = _sealed(ready, services)
    for _ in range(2):
        shown = _post(ready, batch_id, "cancel")
        assert (shown["state"], shown["held_reason"]) == ("held", "cancelled")
    work(services)
    assert ready.batch(batch_id)["state"] == "held", "no worker takes it"
    assert _open_erasure(ready) != "completed"
    with services.database.reading() as session:
        assert len(session.scalars(select(BatchEvent).where(BatchEvent.kind == "held")).all()) == 1
    _post(ready, batch_id, "approve", 409)

    ready.call("PATCH", "/toy", 200, json={"policy": {"cancellable": False}})
    _post(ready, batch_id, "retry")
    ready.call("PATCH", "/toy", 200, json={"policy": {"cancellable": True}})
    assert "policy" in _post(ready, batch_id, "cancel", 409)["detail"], "the one it was sealed under"
    work(services)
    shown = ready.batch(batch_id)
    assert (shown["state"], shown["version"], shown["held_reason"]) == ("completed", 1, None)
    assert _open_erasure(ready) == "completed"
    assert "completed" in _post(ready, batch_id, "cancel", 409)["detail"]


def test_a_running_solve_notices_that_it_was_cancelled_and_a_draw_cannot_be(
    ready: Api, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch_id = _sealed(ready, services)
    with monkeypatch.context() as patch:
        _during("solve", patch, lambda: _post(ready, batch_id, "cancel"))
        with pytest.raises(TokenLost):
            work(services)
    shown = ready.batch(batch_id)
    assert (shown["state"], shown["step"], shown["progress"]) == ("held", None, None)
    assert ready.call("GET", "/toy/versions")[0]["number"] == 0, "nothing is published"
    assert ready.call("GET", "/toy/ledger")["entries"] == [], "and nothing counts"
    assert not list((services.settings.data_dir / "scratch").glob("*/"))

    _post(ready, batch_id, "retry")
    refused: list[str] = []
    progress: list[dict[str, Any]] = []
    _during("write_draft", monkeypatch, lambda: progress.append(ready.batch(batch_id)["progress"]))
    for stage, after in (("write_draft", False), ("write_draft", True), ("score_draw", False)):
        _during(
            stage,
            monkeypatch,
            lambda: refused.append(_post(ready, batch_id, "cancel", 409)["detail"]),
            after=after,
        )
    work(services)
    assert ready.batch(batch_id)["state"] == "completed"
    assert [(said["percent"], said["eta_seconds"]) for said in progress] == [(100, 0.0)]
    assert len(refused) == 3
    assert all("drawn" in said for said in refused)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_cancelled_append_ends_and_its_parts_stay_staged(
    ready: Api, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready.put("dataset/part1", dataset(rows=40, seed=9))
    batch_id = ready.call("POST", "/toy/append", 202)["batch_id"]
    with monkeypatch.context() as patch:
        _during("solve", patch, lambda: _post(ready, batch_id, "cancel"))
        with pytest.raises(TokenLost):
            work(services)
    assert _post(ready, batch_id, "cancel")["state"] == "failed"
    assert [part["state"] for part in ready.call("GET", "/toy/dataset")] == ["held", "held", "staged"]
    again = ready.call("POST", "/toy/append", 202)["batch_id"]
    work(services)
    assert ready.batch(again)["state"] == "completed"


def test_either_the_cancellation_or_the_publication_wins(services: Services) -> None:
    world = World(services)
    won: list[str] = []
    for number in range(RACES):
        attempt = _running_attempt(world)
        with services.database.reading() as session:
            batch = session.scalars(select(Batch).where(Batch.job_id == attempt.job_id)).one()
        outcome = _race(world, attempt, batch)
        with services.database.reading() as session:
            state = session.get_one(Batch, batch.id).state
            published = session.scalar(select(Version.id).where(Version.batch_id == batch.id))
        assert outcome == ({"published"} if published else {"cancelled"}), number
        assert state == (BatchState.PURGING if published else BatchState.HELD)
        won += outcome
        _finish(world, attempt, batch)
    assert len(won) == RACES


def _running_attempt(world: World) -> Attempt:
    world.ask(0, subjects=3)
    world.dispatchers[0].round()
    attempt = world.claim(world.queue.messages.pop())
    assert attempt is not None
    return attempt


def _race(world: World, attempt: Attempt, batch: Batch) -> set[str]:
    """Run both at the same time, and return which of them succeeded."""
    start, through = threading.Barrier(2), set()

    def cancel() -> None:
        start.wait()
        try:
            with world.services.database.writing() as session:
                service.cancel(session, world.tenant, batch.id)
            through.add("cancelled")
        except Conflict:
            pass

    def publish() -> None:
        start.wait()
        try:
            world.publish(attempt)
            through.add("published")
        except TokenLost:
            pass

    threads = [threading.Thread(target=role) for role in (cancel, publish)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return through


def _finish(world: World, attempt: Attempt, batch: Batch) -> None:
    """End the batch, so that the model can have another one."""
    with world.services.database.reading() as session:
        held = session.get_one(Batch, batch.id).state == BatchState.HELD
    if held:
        with world.services.database.writing() as session:
            service.retry(session, world.tenant, batch.id)
        world.dispatchers[0].round()
        again = world.claim(world.queue.messages.pop())
        assert again is not None
        attempt = again
    world.complete(attempt)

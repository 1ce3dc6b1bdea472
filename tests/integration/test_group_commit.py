"""Group commit: replays of stored requests, and limits on what may wait."""

import asyncio
import threading
from typing import Any

import pytest
from sqlalchemy import select, update

from app.db.states import ModelState
from app.db.tables import Erasure, Model
from app.gateway.erasures import group_commit, recording
from app.gateway.erasures.group_commit import GroupCommit
from app.gateway.erasures.recording import Answer, PreparedErasure, record_group
from app.gateway.erasures.schemas import ErasureRequest
from app.gateway.erasures.service import prepare
from app.gateway.errors import IdempotencyMismatch, InvalidRequest, Unavailable
from app.services import Services
from tests.integration.job_world import World


@pytest.fixture
def world(services: Services) -> World:
    return World(services)


def _prepared(
    world: World, key: str | None = None, *subjects: str, models: list[str] | None = None
) -> PreparedErasure:
    request = ErasureRequest(subjects=list(subjects) or ["a"], models=models)
    return prepare(world.services.vault, world.tenant, request, request.subjects, key)


def _record(world: World, *group: PreparedErasure) -> list[Any]:
    return list(record_group(world.services, group))


def test_a_replay_behind_a_mismatch_is_still_a_replay(world: World) -> None:
    (first,) = _record(world, _prepared(world, "k", "a"))
    strange, again, same_strange = _record(
        world, _prepared(world, "k", "b"), _prepared(world, "k", "a"), _prepared(world, "k", "b")
    )
    assert isinstance(strange, IdempotencyMismatch)
    assert isinstance(same_strange, IdempotencyMismatch), "it equals its leader, which was never recorded"
    assert (again.replayed, again.body, again.location) == (True, first.body, first.location)


def test_a_sound_request_behind_an_unsound_one_is_recorded(world: World) -> None:
    unsound, sound = _record(world, _prepared(world, "k", models=["nowhere"]), _prepared(world, "k"))
    assert isinstance(unsound, InvalidRequest)
    assert isinstance(sound, Answer)
    with world.services.database.reading() as session:
        assert len(session.scalars(select(Erasure)).all()) == 1


def test_a_replay_is_answered_though_its_model_is_retired(world: World) -> None:
    (first,) = _record(world, _prepared(world, "k", models=["m0"]))
    with world.services.database.writing() as session:
        session.execute(update(Model).where(Model.id == world.models[0]).values(state=ModelState.RETIRED))
    (again,) = _record(world, _prepared(world, "k", models=["m0"]))
    assert (again.replayed, again.body) == (True, first.body)


def test_what_may_wait_is_counted_in_rows(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten subjects in two models take twenty rows. The first request tells that there are two models."""
    monkeypatch.setattr(group_commit, "MAX_WAITING_ROWS", 50)
    ten = [str(n) for n in range(10)]

    async def run() -> list[Any]:
        async with GroupCommit(world.services) as door:
            await door.submit(_prepared(world))
            waiting = [door.submit(_prepared(world, None, *ten)) for _ in range(4)]
            first = await asyncio.gather(*waiting, return_exceptions=True)
            alone = _prepared(world, None, *(str(n) for n in range(100)))
            return [*first, await door.submit(alone)]

    kinds = [type(outcome) for outcome in asyncio.run(run())]
    assert kinds == [Answer, Answer, Unavailable, Unavailable, Answer]


def test_a_group_is_bounded_by_its_rows(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "MAX_GROUP_ROWS", 4)
    sizes: list[int] = []

    class Counting(GroupCommit):
        def _commit(self, group: Any) -> Any:
            sizes.append(len(group))
            return super()._commit(group)

    async def run() -> None:
        async with Counting(world.services) as door:
            await asyncio.gather(
                *(door.submit(_prepared(world, None, "a", "b", models=["m0", "m1"])) for _ in range(3))
            )

    asyncio.run(run())
    assert sizes == [1, 1, 1]


def test_a_large_request_does_not_keep_small_ones_waiting(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The large request is not written before the small one is answered."""
    monkeypatch.setattr(group_commit, "MAX_GROUP_ROWS", 4)
    answered = threading.Event()

    class Gated(GroupCommit):
        def _commit_large(self, group: Any) -> Any:
            assert answered.wait(120)
            return super()._commit_large(group)

    async def run() -> list[Any]:
        async with Gated(world.services) as door:
            large = asyncio.create_task(door.submit(_prepared(world, None, *"abcde", models=["m0"])))
            await asyncio.sleep(0)  # the large request is in its queue now
            small = await door.submit(_prepared(world, None, "a", models=["m0"]))
            answered.set()
            return [small, await large]

    assert [type(answer) for answer in asyncio.run(run())] == [Answer, Answer]


def test_a_request_for_every_model_is_large_until_their_number_is_known(world: World) -> None:
    many = [str(n) for n in range(300)]
    lanes: list[str] = []

    class Watched(GroupCommit):
        def _commit(self, group: Any) -> Any:
            lanes.append("small")
            return super()._commit(group)

        def _commit_large(self, group: Any) -> Any:
            lanes.append("large")
            return super()._commit_large(group)

    async def run() -> None:
        async with Watched(world.services) as door:
            for _ in range(2):
                await door.submit(_prepared(world, None, *many))

    asyncio.run(run())
    assert lanes == ["large", "small"]


def test_a_request_with_too_many_rows_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MAX_ROWS", 3)
    fits, refused = _record(world, _prepared(world, None, "a"), _prepared(world, None, "a", "b"))
    assert isinstance(fits, Answer)
    assert isinstance(refused, InvalidRequest)
    assert "Split it into several requests" in refused.detail


def test_a_request_that_the_database_does_not_record_in_time_is_answered(services: Services) -> None:
    """It is recorded once the database answers again. Repeating it with its key is safe."""
    hasty = Services(services.settings.model_copy(update={"database_seconds": 0.05}))
    world, resumed = World(hasty), threading.Event()

    class Hanging(GroupCommit):
        def _commit(self, group: Any) -> Any:
            assert resumed.wait(120)
            return super()._commit(group)

    async def run() -> Answer:
        async with Hanging(hasty) as door:
            with pytest.raises(Unavailable) as problem:
                await door.submit(_prepared(world, "k", "a"))
            assert problem.value.headers == {"Retry-After": "5"}
            resumed.set()
        (again,) = _record(world, _prepared(world, "k", "a"))
        return again  # type: ignore[no-any-return]

    assert asyncio.run(run()).replayed
    hasty.close()

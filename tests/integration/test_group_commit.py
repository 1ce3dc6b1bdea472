"""Group commit: replays of stored requests, and limits on what may wait."""

import asyncio
from typing import Any

import pytest
from sqlalchemy import select, update

from app.db.states import ModelState
from app.db.tables import Erasure, Model
from app.gateway.erasures import group_commit
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
    return list(record_group(world.services.database, group))


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

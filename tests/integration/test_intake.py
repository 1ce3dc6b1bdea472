"""Groups: replays of what is stored, and how much may wait."""

import asyncio
from typing import Any

import pytest
from sqlalchemy import select, update

from app.bootstrap import Services
from app.db.states import ModelState
from app.db.tables import Erasure, Model
from app.erasures import intake, recording
from app.erasures.intake import Intake
from app.erasures.recording import Answer, Prepared, record_group
from app.erasures.schemas import ErasureRequest
from app.erasures.service import prepare
from app.errors import IdempotencyMismatch, InvalidRequest, Unavailable
from tests.integration.job_world import World


@pytest.fixture
def world(services: Services) -> World:
    return World(services)


def _prepared(
    world: World, key: str | None = None, *subjects: str, models: list[str] | None = None
) -> Prepared:
    request = ErasureRequest(subjects=list(subjects) or ["a"], models=models)
    return prepare(world.services.vault, world.tenant, request, request.subjects, key)


def _record(world: World, *group: Prepared) -> list[Any]:
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
    """Ten subjects in two models are twenty rows; that there are two is known from the first request."""
    monkeypatch.setattr(intake, "MOST_ROWS_WAITING", 50)
    ten = [str(n) for n in range(10)]

    async def run() -> list[Any]:
        async with Intake(world.services) as door:
            await door.submit(_prepared(world))
            waiting = [door.submit(_prepared(world, None, *ten)) for _ in range(4)]
            first = await asyncio.gather(*waiting, return_exceptions=True)
            alone = _prepared(world, None, *(str(n) for n in range(100)))
            return [*first, await door.submit(alone)]

    kinds = [type(outcome) for outcome in asyncio.run(run())]
    assert kinds == [Answer, Answer, Unavailable, Unavailable, Answer]


def test_a_group_is_bounded_by_its_rows(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "MOST_ROWS_IN_GROUP", 4)
    sizes: list[int] = []
    real = recording.record_group

    def counted(database: Any, group: Any) -> Any:
        sizes.append(len(group))
        return real(database, group)

    monkeypatch.setattr(intake, "record_group", counted)

    async def run() -> None:
        async with Intake(world.services) as door:
            await asyncio.gather(
                *(door.submit(_prepared(world, None, "a", "b", models=["m0", "m1"])) for _ in range(3))
            )

    asyncio.run(run())
    assert sizes == [1, 1, 1]

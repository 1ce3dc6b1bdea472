"""Curvature sketches: they speed up the next erasure, never outlive their rows, and cannot spoil it."""

from dataclasses import dataclass, field
from uuid import UUID, uuid4

import pytest
import torch
from fastapi.testclient import TestClient
from sqlalchemy import select

from app.core.clock import new_id
from app.core.settings import Settings
from app.db import paths, transitions
from app.db.manifest import Manifest
from app.db.states import VersionState
from app.db.tables import Model, Version
from app.dispatcher import orphan_sweep
from app.services import Services
from tests.integration.model_api import Api, Headers, registered, work
from worker import fitting, queue, sketches
from worker.batch import solve
from worker.context import JobContext
from worker.distributed.rank0 import Team
from worker.engine.sketch import CurvatureSketch, SketchCancelled, build_sketch
from worker.engine.trust_region import Solution
from worker.fitting import published_weights
from worker.fork_server import PREPARE


@pytest.fixture
def api(gateway: TestClient, admin: Headers, services: Services) -> Api:
    return registered(Api(gateway, admin), services)


@pytest.fixture(autouse=True)
def _sketches_for_small_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sketches, "LEAST_NUMBERS", 1)
    monkeypatch.setattr(sketches, "LEAST_DIRECTIONS", 1)
    monkeypatch.setattr("os.nice", lambda _: None)  # it would last for the rest of the tests


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[CurvatureSketch | None]:
    """The sketch, or None, that each solve was given."""
    recorded: list[CurvatureSketch | None] = []

    def recording(*arguments: object, sketch: CurvatureSketch | None = None, **more: object) -> Solution:
        recorded.append(sketch)
        return fitting.fit(*arguments, sketch=sketch, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(solve, "fit", recording)
    return recorded


def _context(services: Services) -> JobContext:
    with services.database.reading() as session:
        model = session.scalars(select(Model)).one()
    token = uuid4()
    manifest = Manifest.model_validate(model.manifest)
    return JobContext(services, token, token, model, manifest, None, Team.alone(services.settings))


def _stored(services: Services) -> list[str]:
    return services.storage.list(paths.SKETCHES)


def _current(services: Services) -> str:
    with services.database.reading() as session:
        version = session.scalars(select(Version).where(Version.state == VersionState.CURRENT)).one()
    return paths.sketch(version.model_id, version.id)


def test_a_sketch_is_used_once_and_gone_before_the_erasure_is_completed(
    api: Api,
    services: Services,
    used: list[CurvatureSketch | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sketches.prepare_sketches(services)
    assert _stored(services) == [first := _current(services)]
    complete = transitions.complete_batch
    left: list[list[str]] = []

    def recording(*arguments: object) -> None:
        left.append(_stored(services))
        complete(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(transitions, "complete_batch", recording)
    api.erase("s1", "s2")
    work(services)
    assert left == [[]], "no sketch may be stored when the erasure is completed"
    assert [sketch is not None for sketch in used] == [True]
    sketches.prepare_sketches(services)
    assert _stored(services) == [_current(services)] != [first]
    sketches.prepare_sketches(services)  # there is nothing left to do
    api.erase("s3", "s4")
    work(services)
    assert [sketch is not None for sketch in used] == [True, True]
    assert _stored(services) == []


def test_without_a_sketch_an_erasure_solves_as_before(
    api: Api, services: Services, used: list[CurvatureSketch | None]
) -> None:
    api.erase("s1", "s2")
    work(services)
    assert used == [None]


def test_a_sketch_finished_after_its_version_was_superseded_is_not_stored(
    api: Api, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = build_sketch

    def slow(*arguments: object, **more: object) -> CurvatureSketch | None:
        sketch = build(*arguments, **more)  # type: ignore[arg-type]
        api.erase("s1", "s2")
        work(services)  # publishes and purges meanwhile
        return sketch

    monkeypatch.setattr(sketches, "build_sketch", slow)
    assert not sketches.prepare_sketch(_context(services))
    assert _stored(services) == []


def test_building_stops_once_the_version_is_superseded(
    api: Api, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = published_weights

    def superseded(*arguments: object) -> torch.Tensor:
        w = read(*arguments)  # type: ignore[arg-type]
        api.erase("s1", "s2")
        work(services)
        return w

    monkeypatch.setattr(sketches, "published_weights", superseded)
    with pytest.raises(SketchCancelled):
        sketches.prepare_sketch(_context(services))
    assert _stored(services) == []


def _damage(content: bytes, how: str) -> bytes:
    if how == "cut short":
        return content[:-7]
    if how == "empty":
        return b""
    if how == "another key":
        return b"0" * 64 + content[64:]
    return content[:-1] + bytes([content[-1] ^ 1])


@pytest.mark.parametrize("how", ["cut short", "empty", "another key", "one bit"])
def test_a_damaged_sketch_is_ignored(
    api: Api, services: Services, used: list[CurvatureSketch | None], how: str
) -> None:
    sketches.prepare_sketches(services)
    path = _current(services)
    content = b"".join(services.storage.read(path))
    services.storage.delete(path)
    services.storage.write(path, [_damage(content, how)])
    api.erase("s1", "s2")
    work(services)
    assert used == [None]
    assert _stored(services) == []


@pytest.mark.parametrize(
    ("basis", "values", "problem"),
    [
        (torch.zeros(2, 3), torch.ones(2), "shapes"),
        (torch.zeros(2, 4), torch.ones(3), "shapes"),
        (torch.zeros(2, 4, dtype=torch.float64), torch.ones(2), "types"),
        (torch.full((2, 4), torch.nan), torch.ones(2), "impossible"),
        (torch.zeros(2, 4), -torch.ones(2), "impossible"),
    ],
)
def test_a_sketch_that_does_not_fit_is_refused(
    basis: torch.Tensor, values: torch.Tensor, problem: str
) -> None:
    key = "a" * 64
    sketch, reason = sketches.parse(sketches.serialise(CurvatureSketch(basis, values), key), key, 4)
    assert sketch is None
    assert reason is not None
    assert problem in reason


def test_a_model_with_few_weights_gets_no_sketch(
    api: Api, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sketches, "LEAST_DIRECTIONS", 16)  # more than a quarter of this model's weights
    sketches.prepare_sketches(services)
    assert _stored(services) == []


def test_no_sketch_is_larger_than_allowed(
    api: Api, services: Services, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sketches, "MEGABYTE", 4 * 22 * 3)  # of floats: three directions and values
    limited = Services(settings.model_copy(update={"sketch_megabytes": 1}))
    sketches.prepare_sketches(limited)
    limited.close()
    (path,) = _stored(services)
    sketch, _ = sketches.parse(b"".join(services.storage.read(path)), _key(services, path), 21)
    assert sketch is not None
    assert len(sketch.values) == 3


def _key(services: Services, path: str) -> str:
    return next(iter(services.storage.read(path)))[:64].decode()


def test_the_sweep_deletes_sketches_of_versions_that_are_not_current(api: Api, services: Services) -> None:
    sketches.prepare_sketches(services)
    current = _current(services)
    model_id = UUID(current.split("/")[1])
    for stale in (paths.sketch(model_id, new_id()), paths.sketch(new_id(), new_id())):
        services.storage.write(stale, [b"old"])
    assert orphan_sweep.sweep(services) == 2
    assert _stored(services) == [current]


def test_retiring_a_model_deletes_its_sketch(api: Api, services: Services) -> None:
    sketches.prepare_sketches(services)
    assert _stored(services)
    api.call("DELETE", "/toy", 200)
    assert _stored(services) == []


# -- the process --------------------------------------------------------------------------------------------


class _Ended:
    """A child process that has ended well."""

    returncode = 0

    def wait(self, _: float) -> bool:
        return True


@dataclass
class _Attempts:
    """Stands for the fork server. Its attempts end at once, and preparations run until they are ended."""

    log: list[str] = field(default_factory=list)
    idle: bool = False

    def run(self, *_: str, env: object = None) -> _Ended:
        self.log.append("attempt")
        return _Ended()

    def run_idle(self, *arguments: str) -> None:
        self.log.append(arguments[0])
        self.idle = True

    def end_idle(self) -> bool:
        if self.idle:
            self.log.append("end")
        ended, self.idle = self.idle, False
        return ended


@pytest.fixture
def _claimable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "_is_claimable", lambda *_: True)
    monkeypatch.setattr(queue, "_model_of", lambda *_: new_id())


@pytest.mark.usefixtures("_claimable")
def test_a_message_ends_the_preparation_before_its_attempt_begins(services: Services) -> None:
    attempts = _Attempts()
    runtime = queue.WorkerRuntime(services, attempts)  # type: ignore[arg-type]
    for _ in range(2):
        queue.run(runtime, str(new_id()), str(new_id()))
    assert attempts.log == ["attempt", PREPARE, "end", "attempt", PREPARE]


@pytest.mark.usefixtures("_claimable")
def test_no_preparation_begins_in_a_worker_that_stops_or_whose_sketches_are_turned_off(
    services: Services, settings: Settings
) -> None:
    attempts = _Attempts()
    runtime = queue.WorkerRuntime(services, attempts)  # type: ignore[arg-type]
    runtime.drain.begin()
    queue.run(runtime, str(new_id()), str(new_id()))
    off = Services(settings.model_copy(update={"sketch_megabytes": 0}))
    queue.run(queue.WorkerRuntime(off, attempts), str(new_id()), str(new_id()))  # type: ignore[arg-type]
    off.close()
    assert attempts.log == ["attempt", "attempt"]

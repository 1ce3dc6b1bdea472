"""kill -9 while features are computed. The next attempt repeats at most one part."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from app.db.states import JobKind
from app.db.tables import DatasetPart
from app.gateway.auth.scopes import Scope
from app.gateway.main import create_app
from app.services import Services
from tests.faults.dying import Dying
from tests.integration.harness import key_for
from tests.integration.model_api import Api, work
from tests.representations import IMAGES, image_graph, image_part
from worker.features import FeatureBuilder

pytestmark = pytest.mark.slow
PARTS = ("h0", "part0", "part1", "part2")  # in the order in which they are represented


@pytest.fixture
def api(services: Services) -> Iterator[Api]:
    with TestClient(create_app(services.settings)) as gateway:
        model = Api(gateway, key_for(services, "killed", Scope.ADMIN))
        model.create(representation=IMAGES)
        model.put("representation", image_graph())
        model.put("holdout/h0", image_part(rows=30, subjects=30, first=90))
        for index in range(3):
            model.put(f"dataset/part{index}", image_part(rows=30, seed=index, first=20 * index))
        model.call("POST", "/toy/validate", 202)
        yield model


@pytest.fixture
def dying(services: Services) -> Iterator[Dying]:
    attempts = Dying(services)
    yield attempts
    attempts.close()


def features_of(services: Services) -> dict[str, str | None]:
    with services.database.reading() as session:
        return {part.name: part.features_path for part in session.scalars(select(DatasetPart))}


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("place", "finished"),
    [
        ("after:worker.features.FeatureBuilder._write#3", 2),
        ("after:worker.features.FeatureBuilder._record#2", 2),
    ],
)
def test_a_killed_attempt_leaves_its_finished_parts_to_the_next(
    api: Api,
    services: Services,
    dying: Dying,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    place: str,
    finished: int,
) -> None:
    assert dying.kill_at(JobKind.REGISTER, place, tmp_path / "witness")
    kept = {name: path for name, path in features_of(services).items() if path is not None}
    assert sorted(kept) == sorted(PARTS[:finished])
    written: list[str] = []
    write = FeatureBuilder._write

    def counting(self: FeatureBuilder, part: DatasetPart, target: Path, progress: Any) -> None:
        written.append(part.name)
        write(self, part, target, progress)

    monkeypatch.setattr(FeatureBuilder, "_write", counting)
    work(services)
    assert api.call("GET", "/toy")["state"] == "ready", api.call("GET", "/toy")["reasons"]
    assert written == list(PARTS[finished:])
    assert kept.items() <= features_of(services).items()

"""kill -9 at every boundary of the pipeline and at random moments. Nothing is lost or done twice."""

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from app.db.states import JobKind
from app.db.tables import Certificate
from app.gateway.auth.scopes import Scope
from app.gateway.main import create_app
from app.services import Services
from lethe.certificate.cli import run_verify
from tests.faults.dying import Dying
from tests.integration.harness import MANIFEST, dataset, key_for
from tests.integration.model_api import Api, work

pytestmark = pytest.mark.slow
RUN = "worker.batch.run"
PURGE = "worker.batch.purge"
BOUNDARIES = [
    *(f"{when}:{RUN}.{name}" for name in ("resolve", "solve", "publish") for when in ("before", "after")),
    *(f"after:{RUN}.{name}" for name in ("write_draft", "record_draw", "score_draw", "with_utility")),
    *(
        f"{when}:{PURGE}.{name}"
        for name in ("delete_files", "forget_identifiers", "destroy_subject_keys")
        for when in ("before", "after")
    ),
    f"after:{PURGE}.empty_write_ahead_log",
]
KILLS = int(os.environ.get("LETHE_TEST_KILLS", "20"))
SUBJECTS = 6 * KILLS + 40


@pytest.fixture
def api(services: Services) -> Any:
    with TestClient(create_app(services.settings)) as gateway:
        model = Api(gateway, key_for(services, "killed", Scope.ADMIN))
        model.create(policy=MANIFEST["policy"] | {"epsilon": 0.1, "lifetime_epsilon": 900.0})
        model.put("dataset/part0", dataset(rows=3 * SUBJECTS, subjects=SUBJECTS))
        model.put("holdout/h0", dataset(rows=60, subjects=60, seed=8))
        model.call("POST", "/toy/validate", 202)
        work(services)
        yield model


@pytest.fixture
def dying(services: Services) -> Iterator[Dying]:
    attempts = Dying(services)
    yield attempts
    attempts.close()


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_every_acknowledged_erasure_is_completed_once_whatever_is_killed(
    api: Api, services: Services, dying: Dying, tmp_path: Path
) -> None:
    rounds = _kill_and_repair(api, services, dying, tmp_path)
    erasures = _erasures(api)
    assert [item["state"] for item in erasures] == ["completed"] * rounds
    versions = sorted(item["tasks"][0]["version"] for item in erasures)
    assert versions == list(range(1, rounds + 1)), "each erasure has its own version, in one chain"
    entries = api.call("GET", "/toy/ledger")["entries"]
    assert [entry["version"] for entry in entries] == versions
    with services.database.reading() as session:
        assert len(session.scalars(select(Certificate.id)).all()) == rounds
    _check_last_certificate(api, entries[-1]["certificate_id"], tmp_path, rounds)
    _check_nothing_unnoised(services, tmp_path)


def _kill_and_repair(api: Api, services: Services, dying: Dying, folder: Path) -> int:
    """Request an erasure, kill an attempt at it, let another finish, and repeat. Return the number of rounds.

    Random moments are drawn from a span that adapts to this machine. It grows when an attempt is killed
    before its draw, and shrinks when one finishes first, which does not count as a kill.
    """
    chance, killed, after_draw, rounds, span = random.Random(20), 0, 0, 0, 1.5
    while killed < KILLS:
        place = BOUNDARIES[rounds] if rounds < len(BOUNDARIES) else f"at:{chance.uniform(0, span):.3f}"
        api.erase(f"s{2 * rounds}", f"s{2 * rounds + 1}")
        witness = folder / f"witness-{rounds}"
        died = dying.kill_at(JobKind.UNLEARN, place, witness)
        killed += died
        after_draw += died and witness.exists()
        if place.startswith("at:"):
            span *= 0.9 if not died else 1.0 if witness.exists() else 1.1
        work(services)
        rounds += 1
    print(f"{killed} kills, {after_draw} of them after the draw, {rounds} erasures")
    return rounds


def _erasures(api: Api) -> list[Any]:
    erasures: list[Any] = []
    params: dict[str, int | str] = {"limit": 200}
    while True:
        page = api.gateway.get("/v1/erasures", params=params, headers=api.headers).json()
        erasures += page["items"]
        if page["next_cursor"] is None:
            return erasures
        params["cursor"] = page["next_cursor"]


def _check_last_certificate(api: Api, certificate_id: str, folder: Path, rounds: int) -> None:
    """Verify the last pack. It contains all earlier certificates, so this verifies the whole chain."""
    files = {
        "m.safetensors": "/v1/models/toy/versions/current/checkpoint",
        "pack.json": f"/v1/certificates/{certificate_id}/pack",
        "evidence.json": f"/v1/certificates/{certificate_id}/evidence",
    }
    for name, url in files.items():
        (folder / name).write_bytes(api.gateway.get(url, headers=api.headers).content)
    lines: list[str] = []
    code = run_verify(
        pack=folder / "pack.json",
        model=folder / "m.safetensors",
        evidence=folder / "evidence.json",
        write=lines.append,
    )
    assert code == 0, "\n".join(lines)
    assert f"; {rounds} releases, of which 0 discarded" in "\n".join(lines)


def _check_nothing_unnoised(services: Services, folder: Path) -> None:
    witnesses = [path.read_bytes()[:64] for path in folder.glob("witness-*")]
    assert len(witnesses) >= min(KILLS, len(BOUNDARIES)) // 2, "half of the kills must come after the draw"
    files = [path for path in services.settings.data_dir.rglob("*") if path.is_file()]
    files += list(Path(services.settings.database.removeprefix("sqlite:///")).parent.glob("lethe.db*"))
    for path in files:
        content = path.read_bytes()
        assert not any(witness in content for witness in witnesses), path

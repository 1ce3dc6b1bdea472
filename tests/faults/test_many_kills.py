"""kill -9 at every boundary of the pipeline, and at random moments: nothing lost, nothing twice."""

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from app.access.scopes import Scope
from app.bootstrap import Services
from app.clock import now
from app.db import transitions
from app.db.states import JobKind, JobState
from app.db.tables import Certificate, Job
from app.dispatcher import Dispatcher
from app.main import create_app
from app.supervisor import environment
from certificate.cli import run_verify
from tests.integration.harness import MANIFEST, dataset, key_for
from tests.integration.model_api import Api, work

pytestmark = pytest.mark.slow
RUN = "worker.pipeline.run"
PURGE = "worker.pipeline.purge"
BOUNDARIES = [
    *(f"{when}:{RUN}.{name}" for name in ("resolve", "solve", "publish") for when in ("before", "after")),
    *(f"after:{RUN}.{name}" for name in ("write_draft", "keep", "measure", "with_utility")),
    *(
        f"{when}:{PURGE}.{name}"
        for name in ("_delete_files", "_forget_identifiers")
        for when in ("before", "after")
    ),
    f"after:{PURGE}._empty_wal",
]
KILLS = int(os.environ.get("LETHE_TEST_KILLS", "20"))
SUBJECTS = 4 * KILLS + 20


@pytest.fixture
def api(services: Services) -> Any:
    with TestClient(create_app(services.settings)) as gateway:
        made = Api(gateway, key_for(services, "killed", Scope.ADMIN))
        made.create(policy=MANIFEST["policy"] | {"lifetime_epsilon": 900.0})
        made.put("dataset/part0", dataset(rows=3 * SUBJECTS, subjects=SUBJECTS))
        made.put("holdout/h0", dataset(rows=60, subjects=60, seed=8))
        made.call("POST", "/toy/validate", 202)
        work(services)
        yield made


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_every_acknowledged_erasure_is_completed_once_whatever_is_killed(
    api: Api, services: Services, tmp_path: Path
) -> None:
    chance = random.Random(20)
    places = (BOUNDARIES + [f"at:{chance.uniform(0, 1.5):.3f}" for _ in range(KILLS)])[:KILLS]
    for number, place in enumerate(places):
        api.erase(f"s{2 * number}", f"s{2 * number + 1}")
        _die_at(services, place, tmp_path / f"witness-{number}")
        work(services)

    page = api.gateway.get("/v1/erasures", params={"limit": 200}, headers=api.headers).json()
    assert [item["state"] for item in page["items"]] == ["completed"] * KILLS
    versions = sorted(item["tasks"][0]["version"] for item in page["items"])
    assert versions == list(range(1, KILLS + 1)), "one chain, each erasure its own version"
    entries = api.call("GET", "/toy/ledger")["entries"]
    assert [entry["version"] for entry in entries] == versions
    with services.database.reading() as session:
        assert len(session.scalars(select(Certificate.id)).all()) == KILLS
    _check_last_certificate(api, entries[-1]["certificate_id"], tmp_path)
    _check_nothing_unnoised(services, tmp_path)


def _die_at(services: Services, place: str, witness: Path) -> None:
    """One attempt in a process of its own, dead at `place`; then what the dispatcher does about it."""
    Dispatcher(services).seal_due()
    with services.database.writing() as session:
        job = session.scalars(
            select(Job).where(Job.state == JobState.WAITING, Job.kind == JobKind.UNLEARN)
        ).one()
        transitions.dispatch(session, job, now())
    command = [
        sys.executable,
        "-m",
        "tests.faults.dying_attempt",
        place,
        str(witness),
        str(job.id),
        str(job.token),
    ]
    env = environment(services.settings, "worker") | {"PYTHONPATH": str(Path(__file__).parents[2])}
    ended = subprocess.run(command, env=env)
    assert ended.returncode == -9 or place.startswith("at:"), f"it did not die at {place}"
    with services.database.writing() as session:
        left = session.get_one(Job, job.id)
        if left.state == JobState.RUNNING:
            transitions.attempt_failed(session, left, error="killed", now=now(), max_attempts=9, backoff=0.0)
        elif left.state == JobState.QUEUED:  # it died before it could claim: the message is sent again
            assert left.token is not None
            assert transitions.claim(session, left.id, left.token, now())
            transitions.attempt_failed(session, left, error="killed", now=now(), max_attempts=9, backoff=0.0)


def _check_last_certificate(api: Api, certificate_id: str, folder: Path) -> None:
    """The last pack holds every predecessor, so that the whole chain is verified with it."""
    files = {
        "m.safetensors": "/v1/models/toy/versions/current/checkpoint",
        "pack.json": f"/v1/certificates/{certificate_id}/pack",
        "evidence.json": f"/v1/certificates/{certificate_id}/evidence",
    }
    for name, url in files.items():
        (folder / name).write_bytes(api.gateway.get(url, headers=api.headers).content)
    said: list[str] = []
    code = run_verify(
        pack=folder / "pack.json",
        model=folder / "m.safetensors",
        evidence=folder / "evidence.json",
        write=said.append,
    )
    assert code == 0, "\n".join(said)
    assert f"over {KILLS} releases" in "\n".join(said)


def _check_nothing_unnoised(services: Services, folder: Path) -> None:
    witnesses = [path.read_bytes()[:64] for path in folder.glob("witness-*")]
    assert len(witnesses) >= KILLS // 2, "most attempts came as far as the draw"
    files = [path for path in services.settings.data_dir.rglob("*") if path.is_file()]
    files += list(Path(services.settings.database.removeprefix("sqlite:///")).parent.glob("lethe.db*"))
    for path in files:
        content = path.read_bytes()
        assert not any(witness in content for witness in witnesses), path

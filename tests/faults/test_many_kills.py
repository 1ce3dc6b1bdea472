"""kill -9 at every boundary of the pipeline, and at random moments: nothing lost, nothing twice."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from app import process
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
SUBJECTS = 6 * KILLS + 40


@pytest.fixture
def api(services: Services) -> Any:
    with TestClient(create_app(services.settings)) as gateway:
        made = Api(gateway, key_for(services, "killed", Scope.ADMIN))
        made.create(policy=MANIFEST["policy"] | {"epsilon": 0.1, "lifetime_epsilon": 900.0})
        made.put("dataset/part0", dataset(rows=3 * SUBJECTS, subjects=SUBJECTS))
        made.put("holdout/h0", dataset(rows=60, subjects=60, seed=8))
        made.call("POST", "/toy/validate", 202)
        work(services)
        yield made


class Dying:
    """Attempts in processes of their own, each killed at a place of its own."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.running = process.spawn(
            [sys.executable, "-m", "tests.faults.dying_attempt"],
            env=environment(services.settings, "worker") | {"PYTHONPATH": str(Path(__file__).parents[2])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def run(self, job: Job, place: str, witness: Path) -> bool:
        """Whether it died there, or was done before."""
        assert self.running.stdin
        assert self.running.stdout
        line = json.dumps([place, str(witness), str(job.id), str(job.token)])
        self.running.stdin.write(line.encode() + b"\n")
        self.running.stdin.flush()
        code = int(self.running.stdout.readline())
        assert code == -9 or (code == 0 and place.startswith("at:")), f"{place}: {code}"
        return code == -9

    def close(self) -> None:
        process.kill(self.running)
        for pipe in (self.running.stdin, self.running.stdout):
            assert pipe
            pipe.close()


@pytest.fixture
def dying(services: Services) -> Iterator[Dying]:
    made = Dying(services)
    yield made
    made.close()


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_every_acknowledged_erasure_is_completed_once_whatever_is_killed(
    api: Api, services: Services, dying: Dying, tmp_path: Path
) -> None:
    rounds = _kill_and_repair(api, services, dying, tmp_path)
    erasures = _erasures(api)
    assert [item["state"] for item in erasures] == ["completed"] * rounds
    versions = sorted(item["tasks"][0]["version"] for item in erasures)
    assert versions == list(range(1, rounds + 1)), "one chain, each erasure its own version"
    entries = api.call("GET", "/toy/ledger")["entries"]
    assert [entry["version"] for entry in entries] == versions
    with services.database.reading() as session:
        assert len(session.scalars(select(Certificate.id)).all()) == rounds
    _check_last_certificate(api, entries[-1]["certificate_id"], tmp_path, rounds)
    _check_nothing_unnoised(services, tmp_path)


def _kill_and_repair(api: Api, services: Services, dying: Dying, folder: Path) -> int:
    """An erasure, an attempt at it that is killed, and another that finishes, over and over; how often.

    Random moments are drawn from a span that follows how long an attempt lives here: it grows where one dies
    before its draw, and shrinks where one is done before it is killed, which counts as no kill.
    """
    chance, killed, after_draw, rounds, span = random.Random(20), 0, 0, 0, 1.5
    while killed < KILLS:
        place = BOUNDARIES[rounds] if rounds < len(BOUNDARIES) else f"at:{chance.uniform(0, span):.3f}"
        api.erase(f"s{2 * rounds}", f"s{2 * rounds + 1}")
        witness = folder / f"witness-{rounds}"
        died = _die_at(services, dying, place, witness)
        killed += died
        after_draw += died and witness.exists()
        if place.startswith("at:"):
            span *= 0.9 if not died else 1.0 if witness.exists() else 1.1
        work(services)
        rounds += 1
    print(f"{killed} kills, {after_draw} of them after the draw, {rounds} erasures")
    return rounds


def _erasures(api: Api) -> list[Any]:
    found: list[Any] = []
    cursor: dict[str, str] = {}
    while True:
        page = api.gateway.get("/v1/erasures", params={"limit": 200} | cursor, headers=api.headers).json()
        found += page["items"]
        if page["next_cursor"] is None:
            return found
        cursor = {"cursor": page["next_cursor"]}


def _die_at(services: Services, dying: Dying, place: str, witness: Path) -> bool:
    """One attempt, dead at `place` if it lived as long; then what the dispatcher does about it."""
    Dispatcher(services).seal_due()
    with services.database.writing() as session:
        job = session.scalars(
            select(Job).where(Job.state == JobState.WAITING, Job.kind == JobKind.UNLEARN)
        ).one()
        transitions.dispatch(session, job, now())
    died = dying.run(job, place, witness)
    with services.database.writing() as session:
        left = session.get_one(Job, job.id)
        if left.state == JobState.QUEUED:  # it died before it could claim: the message is sent again
            assert left.token is not None
            assert transitions.claim(session, left.id, left.token, now())
        if left.state == JobState.RUNNING:
            transitions.attempt_failed(session, left, error="killed", now=now(), max_attempts=9, backoff=0.0)
    return died


def _check_last_certificate(api: Api, certificate_id: str, folder: Path, rounds: int) -> None:
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
    assert f"over {rounds} releases" in "\n".join(said)


def _check_nothing_unnoised(services: Services, folder: Path) -> None:
    witnesses = [path.read_bytes()[:64] for path in folder.glob("witness-*")]
    assert len(witnesses) >= min(KILLS, len(BOUNDARIES)) // 2, "half of the places come after the draw"
    files = [path for path in services.settings.data_dir.rglob("*") if path.is_file()]
    files += list(Path(services.settings.database.removeprefix("sqlite:///")).parent.glob("lethe.db*"))
    for path in files:
        content = path.read_bytes()
        assert not any(witness in content for witness in witnesses), path

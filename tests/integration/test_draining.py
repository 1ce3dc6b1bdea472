"""Parts that are asked to stop finish their work or hand it on, and exit with code 0. Real processes."""

import itertools
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from app.core import process
from app.core.settings import Settings
from app.db.states import JobState
from app.db.tables import Erasure, Job, Lease
from app.dispatcher.loop import Dispatcher
from app.local.supervisor import environment
from app.services import Services
from tests import eventually, reserved_port
from tests.faults.gated_attempt import GATE, PYTHONPATH
from tests.integration.harness import create_model

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
Running = subprocess.Popen[bytes]
PATIENT: dict[str, Any] = {"timeout": 120, "trust_env": False}


class Parts:
    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings, self.folder = settings, folder
        self.running: list[Running] = []

        self.gate = folder / "gate"

    def start(self, part: str, **changed: object) -> Running:
        """Start a part of the service as a process. The attempts of a worker wait at this object's gate."""
        env = environment(self.settings.model_copy(update=changed), part)
        module = ("tests.faults.gated_worker",) if part == "worker" else ("lethe.cli", part)
        with (self.folder / f"{part}.log").open("ab") as log:
            command = [sys.executable, "-m", *module]
            gated = {GATE: str(self.gate), "PYTHONPATH": PYTHONPATH}
            self.running.append(process.spawn(command, env=env | gated, stdout=log, stderr=log))
        return self.running[-1]


@pytest.fixture
def parts(settings: Settings, tmp_path: Path) -> Iterator[Parts]:
    made = Parts(settings, tmp_path)
    yield made
    process.stop(*made.running, grace=30)


@pytest.fixture
def port() -> Iterator[int]:
    with reserved_port() as reserved:
        yield reserved


def ended(running: Running) -> int:
    running.send_signal(signal.SIGTERM)
    return running.wait(300)


def answered(client: httpx.Client, path: str) -> int:
    try:
        return client.get(path).status_code
    except httpx.TransportError:
        return 0


def test_a_gateway_says_it_is_not_ready_and_loses_no_acknowledged_request(
    parts: Parts, admin: dict[str, str], services: Services, port: int
) -> None:
    """It would serve for five minutes more. A second signal tells it that the balancers have noticed."""
    gateway = parts.start("gateway", port=port, linger_seconds=300.0)
    acknowledged: list[str] = []
    refused = threading.Event()

    def post(number: int) -> None:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=admin, **PATIENT) as client:
            for n in itertools.count():
                try:
                    answer = client.post("/v1/erasures", json={"subjects": [f"s{number}-{n}"]})
                except httpx.TransportError:  # the connection is refused: nothing was acknowledged
                    refused.set()
                    return
                assert answer.status_code == 202
                acknowledged.append(answer.json()["id"])

    with httpx.Client(base_url=f"http://127.0.0.1:{port}", **PATIENT) as client:
        ready = "/readyz?exclude=worker"
        eventually(lambda: answered(client, ready) == 200)
        with ThreadPoolExecutor(4) as load:
            busy = [load.submit(post, number) for number in range(4)]
            eventually(lambda: len(acknowledged) > 20)
            gateway.send_signal(signal.SIGTERM)
            eventually(lambda: answered(client, ready) == 503, every=0.01)
            before = len(acknowledged)
            eventually(lambda: len(acknowledged) > before or refused.is_set())
            assert not refused.is_set(), "it serves on while balancers look elsewhere"
            gateway.send_signal(signal.SIGTERM)
            assert gateway.wait(300) == 0
            for one in busy:
                one.result()
    with services.database.reading() as session:
        recorded = {str(found) for found in session.scalars(select(Erasure.id))}
    assert set(acknowledged) <= recorded


def test_a_gateway_ends_by_itself_once_balancers_had_time_to_notice(parts: Parts, port: int) -> None:
    gateway = parts.start("gateway", port=port, linger_seconds=0.1)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", **PATIENT) as client:
        eventually(lambda: answered(client, "/healthz") == 200)
    assert ended(gateway) == 0


def test_a_dispatcher_gives_its_lease_back(parts: Parts, services: Services) -> None:
    def leases() -> int:
        with services.database.reading() as session:
            return len(session.scalars(select(Lease)).all())

    running = parts.start("dispatcher")
    eventually(lambda: leases() == 1)
    assert ended(running) == 0
    assert leases() == 0


def job_of(services: Services) -> Job:
    with services.database.reading() as session:
        return session.scalars(select(Job)).one()


@pytest.mark.parametrize(
    ("patience", "state", "attempt"), [(0.0, JobState.WAITING, 0), (600.0, JobState.DONE, 1)]
)
def test_a_worker_finishes_its_job_or_hands_it_back_uncounted(
    parts: Parts,
    gateway: TestClient,
    admin: dict[str, str],
    services: Services,
    patience: float,
    state: JobState,
    attempt: int,
) -> None:
    create_model(gateway, admin)
    Dispatcher(services).round()
    worker = parts.start("worker", drain_seconds=patience)
    eventually(lambda: job_of(services).state == JobState.RUNNING, within=120, every=0.01)
    worker.send_signal(signal.SIGTERM)
    if patience:
        parts.gate.touch()
    assert worker.wait(300) == 0
    job = job_of(services)
    assert (job.state, job.attempt, job.token) == (state, attempt, None)

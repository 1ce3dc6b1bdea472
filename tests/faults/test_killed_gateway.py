"""The gateway dies while requests arrive and a batch runs. Every acknowledged erasure is completed once."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from sqlalchemy import select

from app.core import queue
from app.core.settings import Settings
from app.db.states import JobKind, JobState
from app.db.tables import Job, TaskSubject
from app.services import Services
from tests import eventually
from tests.faults.live import JOB_SECONDS
from tests.integration.harness import MANIFEST, dataset
from tests.integration.test_up import START_SECONDS, Up

pytestmark = pytest.mark.slow
KILLS = 2
CUSTOMERS = 3
SUBJECTS = 600


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    running = Up(tmp_path)
    yield running
    running.end()


class Customer:
    """Requests one erasure after another, and repeats each with its idempotency key until it is accepted."""

    def __init__(self, client: httpx.Client, number: int, enough: threading.Event) -> None:
        self.client, self.number, self.enough = client, number, enough
        self.acknowledged: list[str] = []
        self.failed_requests = 0

    def ask(self) -> None:
        for subject in range(self.number, SUBJECTS, CUSTOMERS):
            if self.enough.is_set():
                return
            self.acknowledged.append(self._until_accepted(f"s{subject}"))
            self.enough.wait(0.1)  # the rate of requests

    def _until_accepted(self, subject: str) -> str:
        while True:
            try:
                answer = self.client.post(
                    "/v1/erasures", json={"subjects": [subject]}, headers={"Idempotency-Key": subject}
                )
            except httpx.HTTPError:
                self.failed_requests += 1
                time.sleep(0.05)  # polls until the gateway is back
                continue
            assert answer.status_code == 202, answer.text
            return str(answer.json()["id"])


def _register(client: httpx.Client) -> None:
    for method, path, body in (
        ("POST", "/v1/models", {"json": {"name": "toy", "manifest": MANIFEST}}),
        ("PUT", "/v1/models/toy/dataset/part0", {"content": dataset(rows=2 * SUBJECTS, subjects=SUBJECTS)}),
        ("POST", "/v1/models/toy/validate", {}),
    ):
        answer = client.request(method, path, **body)
        assert answer.is_success, answer.text
    eventually(lambda: client.get("/v1/models/toy").json()["state"] == "ready", within=JOB_SECONDS)


def _kill_while_a_batch_runs(up: Up, services: Services) -> None:
    def running() -> bool:
        with services.database.reading() as session:
            job = select(Job.id).where(Job.kind == JobKind.UNLEARN, Job.state == JobState.RUNNING)
            return session.scalar(job) is not None

    eventually(running, within=JOB_SECONDS)
    killed = up.children()["gateway"]
    killed.kill()
    with redis.Redis.from_url(queue.redis_url(services.settings)) as server:
        server.flushall()
    eventually(lambda: up.children().get("gateway", killed).pid != killed.pid, within=START_SECONDS)


def test_every_acknowledged_erasure_is_completed_once_although_the_gateway_is_killed(up: Up) -> None:
    address = up.address()
    services, enough = Services(Settings(data_dir=up.data)), threading.Event()
    headers = {"Authorization": f"Bearer {up.key()}"}
    with httpx.Client(base_url=address, headers=headers, timeout=120, trust_env=False) as client:
        _register(client)
        customers = [Customer(client, number, enough) for number in range(CUSTOMERS)]
        with ThreadPoolExecutor(CUSTOMERS) as pool:
            asking = [pool.submit(customer.ask) for customer in customers]
            try:
                for _ in range(KILLS):
                    _kill_while_a_batch_runs(up, services)
            finally:
                enough.set()
            for each in asking:
                each.result()
        eventually(lambda: client.get("/readyz").is_success, within=START_SECONDS)
        client.post("/v1/models/toy/flush")
        acknowledged = [erasure for customer in customers for erasure in customer.acknowledged]
        assert sum(customer.failed_requests for customer in customers) >= 1, "no request failed"
        _check(client, services, acknowledged)
    services.close()


def _check(client: httpx.Client, services: Services, acknowledged: list[str]) -> None:
    assert len(set(acknowledged)) == len(acknowledged), "two requests got the same id"
    erasures = [_completed(client, erasure) for erasure in acknowledged]
    versions = client.get("/v1/models/toy/versions").json()
    assert [version["number"] for version in reversed(versions)] == list(range(len(versions)))
    assert {erasure["tasks"][0]["version"] for erasure in erasures} == set(range(1, len(versions)))
    entries = client.get("/v1/models/toy/ledger").json()["entries"]
    assert [entry["version"] for entry in entries] == list(range(1, len(versions)))
    with services.database.reading() as session:
        outcomes = session.scalars(select(TaskSubject.outcome)).all()
    assert outcomes == ["erased"] * len(acknowledged), "each person was erased exactly once"


def _completed(client: httpx.Client, erasure: str) -> Any:
    where = f"/v1/erasures/{erasure}"
    eventually(lambda: client.get(where).json()["state"] == "completed", within=JOB_SECONDS)
    return client.get(where).json()

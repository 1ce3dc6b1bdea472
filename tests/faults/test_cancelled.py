"""An attempt whose batch is cancelled ends soon and deletes what it wrote."""

import subprocess
import sys
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from app.core import process
from app.core.clock import now
from app.db import transitions
from app.db.states import JobState
from app.db.tables import Job
from app.dispatcher.loop import Dispatcher
from app.gateway.auth.scopes import Scope
from app.gateway.main import create_app
from app.local.supervisor import environment
from app.services import Services
from tests import eventually
from tests.faults.live import JOB_SECONDS
from tests.integration.harness import key_for
from tests.integration.model_api import Api, registered, work
from worker import attempt
from worker.data.scratch import sweep

pytestmark = pytest.mark.slow


def _start(services: Services, stage: str) -> subprocess.Popen[bytes]:
    Dispatcher(services).seal_due()
    with services.database.writing() as session:
        job = session.scalars(select(Job).where(Job.state == JobState.WAITING)).one()
        transitions.dispatch(session, job, now())
    command = [sys.executable, "-m", "tests.faults.slow_attempt", stage, str(job.id), str(job.token)]
    env = environment(services.settings, "worker") | {"PYTHONPATH": str(Path(__file__).parents[2])}
    return process.spawn(command, env=env)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_an_attempt_ends_soon_after_it_was_cancelled_and_leaves_nothing(services: Services) -> None:
    with TestClient(create_app(services.settings)) as gateway:
        api = registered(Api(gateway, key_for(services, "cancels", Scope.ADMIN)), services)
        api.erase("s1", "s2")
        for stage, code in (("solve", 0), ("resolve", attempt.FENCED)):
            _cancel_at(stage, api, services, code)
        work(services)
        (batch,) = gateway.get("/v1/batches", headers=api.headers).json()["items"]
        assert batch["state"] == "completed"


def _cancel_at(stage: str, api: Api, services: Services, code: int) -> None:
    before = services.storage.list("attempts")
    running = _start(services, stage)
    (batch,) = api.gateway.get("/v1/batches", headers=api.headers).json()["items"]
    where = f"/v1/batches/{batch['id']}"
    eventually(lambda: api.batch(batch["id"])["step"] == stage, within=JOB_SECONDS)
    eventually(lambda: services.storage.list("attempts") != before, within=JOB_SECONDS)
    assert api.gateway.post(f"{where}/cancel", headers=api.headers).status_code == 202
    assert running.wait(JOB_SECONDS) == code
    assert services.storage.list("attempts") == before
    sweep(services.settings)  # as the worker does after an attempt that failed
    assert not list((services.settings.data_dir / "scratch").glob("*/"))
    assert api.gateway.post(f"{where}/retry", headers=api.headers).status_code == 202

"""Generated requests to every endpoint: none answers 5xx, and every answer matches its schema."""

import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import httpx
import pytest

from app.core import process
from app.core.clock import now
from app.core.settings import Settings
from app.db.tables import WorkerSeen
from app.gateway.auth.scopes import Scope
from app.local import supervisor
from app.services import Services
from tests import eventually, reserved_port
from tests.integration.harness import MANIFEST, key_for

ROOT = Path(__file__).parents[2]
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


@pytest.fixture
def address(settings: Settings, tmp_path: Path) -> Iterator[str]:
    with reserved_port() as port:
        env = supervisor.environment(settings.model_copy(update={"port": port}), "gateway")
        with (tmp_path / "gateway.log").open("wb") as log:
            gateway = process.spawn([sys.executable, "-m", "lethe.cli", "gateway"], env=env, stderr=log)
        where = f"http://127.0.0.1:{port}"
        with httpx.Client(trust_env=False) as client:
            eventually(lambda: _answers(client, where))
        yield where
        process.stop(gateway, grace=60)


def _answers(client: httpx.Client, where: str) -> bool:
    try:
        return client.get(f"{where}/healthz").is_success
    except httpx.HTTPError:
        return False


@pytest.mark.slow
def test_no_generated_request_breaks_the_gateway(address: str, services: Services, tmp_path: Path) -> None:
    headers = key_for(services, "fuzzed", Scope.ADMIN)
    with services.database.writing() as session:  # so that `/readyz` has nothing to complain about
        session.add(WorkerSeen(name="w", seen_at=now() + timedelta(days=1)))
    with httpx.Client(base_url=address, headers=headers, timeout=120, trust_env=False) as client:
        assert client.post("/v1/models", json={"name": "digits", "manifest": MANIFEST}).status_code == 201
        assert client.post("/v1/erasures", json={"subjects": ["a"]}).status_code == 202
    done = subprocess.run(
        [
            Path(sysconfig.get_path("scripts"), "schemathesis"),
            *("run", f"{address}/openapi.json", "--header", f"Authorization: {headers['Authorization']}"),
            *("--checks", CHECKS, "--phases", "examples,coverage,fuzzing", "--max-examples", "8"),
            *("--seed", "20260101", "--suppress-health-check", "all", "--request-timeout", "120"),
        ],
        cwd=tmp_path,
        env=os.environ
        | {"SCHEMATHESIS_HOOKS": "tests.integration.schemathesis_hooks", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert '"level": "error"' not in (tmp_path / "gateway.log").read_text()

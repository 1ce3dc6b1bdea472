"""Generated requests against the whole description: no 5xx, no answer that breaks its own schema."""

import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from app import process, supervisor
from app.access.scopes import Scope
from app.bootstrap import Services
from app.settings import Settings
from tests import eventually
from tests.integration.harness import key_for

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


@pytest.fixture
def address(settings: Settings, tmp_path: Path) -> Iterator[str]:
    port = supervisor.free_port("127.0.0.1", 0)
    env = supervisor.environment(settings.model_copy(update={"port": port}), "gateway")
    with (tmp_path / "gateway.log").open("wb") as log:
        gateway = process.spawn([sys.executable, "-m", "client.cli", "gateway"], env=env, stderr=log)
    where = f"http://127.0.0.1:{port}"
    with httpx.Client(trust_env=False) as client:
        eventually(lambda: _answers(client, where))
    yield where
    process.stop(gateway, grace=20)


def _answers(client: httpx.Client, where: str) -> bool:
    try:
        return client.get(f"{where}/healthz").is_success
    except httpx.HTTPError:
        return False


@pytest.mark.slow
def test_no_generated_request_breaks_the_gateway(address: str, services: Services, tmp_path: Path) -> None:
    key = key_for(services, "fuzzed", Scope.ADMIN)["Authorization"]
    done = subprocess.run(
        [
            Path(sysconfig.get_path("scripts"), "schemathesis"),
            *("run", f"{address}/openapi.json", "--header", f"Authorization: {key}"),
            *("--checks", CHECKS, "--phases", "examples,coverage,fuzzing", "--max-examples", "15"),
            *("--seed", "20260101", "--suppress-health-check", "all", "--request-timeout", "30"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert '"level": "error"' not in (tmp_path / "gateway.log").read_text()

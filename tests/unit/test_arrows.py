"""The architecture's rules, executed in fresh interpreters."""

import subprocess
import sys

import pytest


def _loaded(module: str) -> set[str]:
    code = f"import sys, {module}; print(*sorted({{m.partition('.')[0] for m in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_gateway_does_not_load_torch() -> None:
    assert _loaded("app.main").isdisjoint({"torch", "numpy", "pyarrow", "worker", "client"})


def test_an_auditor_needs_pydantic_and_cryptography_only() -> None:
    foreign = {"sqlalchemy", "fastapi", "torch", "numpy", "httpx", "typer", "rich", "app", "worker", "client"}
    assert _loaded("certificate.verify, certificate.cli").isdisjoint(foreign)


@pytest.mark.parametrize("module", ["worker.main", "worker.jobs"])
def test_the_worker_parent_does_not_load_torch(module: str) -> None:
    assert "torch" not in _loaded(module)


def test_the_engine_loads_nothing_that_does_io_for_it() -> None:
    loaded = _loaded("worker.engine.trust_region, worker.engine.noise, worker.engine.training")
    assert loaded.isdisjoint({"sqlalchemy", "redis", "rq", "fsspec", "structlog", "pydantic_settings", "app"})

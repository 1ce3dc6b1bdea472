"""What each program loads, checked in a fresh interpreter.

import-linter reads the sources; this sees what really ends up in memory, through whatever other library.
"""

import subprocess
import sys

import pytest

from tests.unit.source_trees import sources

COMPUTE = {"torch", "numpy", "pyarrow", "safetensors", "scipy", "mpmath"}
SERVER = {"app", "worker", "sqlalchemy", "fastapi", "starlette", "redis", "rq", "alembic"}


def loaded_by(*modules: str) -> set[str]:
    """Import the modules in a new interpreter and return the names of all modules that are then loaded."""
    code = f"import sys, {', '.join(modules)}; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("module", ["app.gateway.main", "app.dispatcher.loop", "app.local.supervisor"])
def test_the_service_loads_no_numerics_no_worker_and_no_client(module: str) -> None:
    assert loaded_by(module).isdisjoint({*COMPUTE, "worker", "lethe.client", "lethe.cli"})


@pytest.mark.parametrize("module", ["app.gateway.main", "app.dispatcher.loop", "worker.main"])
def test_object_storage_and_tracing_are_loaded_only_when_configured(module: str) -> None:
    # The Redis client loads `opentelemetry.sdk` where it is installed, so the exporter is what tells.
    assert loaded_by(module).isdisjoint({"s3fs", "botocore", "aiobotocore", "opentelemetry.exporter"})


def test_an_auditor_needs_pydantic_and_cryptography_only() -> None:
    loaded = loaded_by("lethe.certificate.verify", "lethe.certificate.cli")
    assert loaded.isdisjoint({*COMPUTE, *SERVER, "httpx", "typer", "rich"})


def test_the_client_loads_nothing_of_the_server() -> None:
    assert loaded_by("lethe.client.api", "lethe.cli.main").isdisjoint({*COMPUTE, *SERVER})


def test_integrations_load_their_library_when_a_function_is_called() -> None:
    modules = [
        source.module for source in sources("lethe") if source.module.startswith("lethe.integrations.")
    ]
    assert len(modules) > 5
    assert loaded_by(*modules).isdisjoint({*COMPUTE, *SERVER, "sklearn", "pandas", "polars", "onnx"})


def test_importing_the_package_loads_no_http_library() -> None:
    assert loaded_by("lethe").isdisjoint({*COMPUTE, *SERVER, "httpx", "typer", "rich", "pydantic"})


@pytest.mark.parametrize("module", ["worker.main", "worker.queue"])
def test_the_worker_process_that_waits_for_jobs_does_not_load_torch(module: str) -> None:
    assert "torch" not in loaded_by(module)


def test_the_engine_loads_nothing_that_reads_files_or_databases() -> None:
    modules = [source.module for source in sources("worker") if source.module.startswith("worker.engine.")]
    loaded = loaded_by("worker.engine", *modules)
    assert loaded.isdisjoint({"sqlalchemy", "redis", "rq", "fsspec", "structlog", "pydantic_settings", "app"})

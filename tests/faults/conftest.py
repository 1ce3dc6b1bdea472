"""One running service per database, shared by the fault tests. Each test leaves it intact."""

import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.core.settings import Settings
from tests.conftest import administer, url_of
from tests.faults.live import JOB_SECONDS, Live


@pytest.fixture(scope="module")
def live(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, redis_url: str
) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("faults")
    for url in _database(request, folder):
        settings = Settings(
            data_dir=folder / "data",
            database_url=url,
            redis_url=redis_url,
            queue_name=f"test-{secrets.token_hex(8)}",
            heartbeat_seconds=1,
            dead_after_seconds=10,
            dispatch_interval_seconds=0.1,
            retry_backoff_seconds=0.1,
            requeue_after_seconds=2,
            lease_seconds=2,
            drain_seconds=JOB_SECONDS,
            create_keys=True,
        )
        running = Live(settings, folder)
        yield running
        running.close()


def _database(request: pytest.FixtureRequest, folder: Path) -> Iterator[str]:
    if request.param == "sqlite":
        shutil.copy(request.getfixturevalue("sqlite_template"), folder / "lethe.db")
        yield f"sqlite:///{folder / 'lethe.db'}"
        return
    template = request.getfixturevalue("postgres_template")
    admin, name = request.getfixturevalue("postgres_url"), f"t_{secrets.token_hex(8)}"
    administer(admin, f"CREATE DATABASE {name} TEMPLATE {template}")
    yield url_of(admin, name)
    administer(admin, f"DROP DATABASE {name} WITH (FORCE)")

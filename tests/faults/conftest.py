"""One running service per database, shared by the fault tests. Each test leaves it intact."""

import secrets
from collections.abc import Iterator

import pytest

from app.core.settings import Settings
from tests.conftest import create_database
from tests.faults.live import JOB_SECONDS, Live


@pytest.fixture(scope="module")
def live(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, redis_url: str
) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("faults")
    for url in create_database(request, folder):
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

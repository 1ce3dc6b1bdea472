"""Nothing is lost and nothing happens twice: a state machine test of jobs, batches and requests."""

import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from sqlalchemy import event, text

from app.core.settings import Settings
from app.db.types import Base
from app.services import Services
from tests.integration.job_machine import JobMachine

EXAMPLES = int(os.environ.get("LETHE_TEST_EXAMPLES", "30"))
STEPS = 60


def run(make: Callable[[ExitStack], Services], *, examples: int) -> None:
    class Machine(JobMachine):
        def __init__(self) -> None:
            self.resources = ExitStack()
            super().__init__(make(self.resources))

        def teardown(self) -> None:
            with self.resources:
                super().teardown()

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def timed(**where: Any) -> Settings:
    return Settings(
        heartbeat_seconds=5,
        dead_after_seconds=30,
        requeue_after_seconds=10,
        lease_seconds=10,
        retry_backoff_seconds=2,
        max_attempts=2,
        create_keys=True,
        redis_url="redis://nobody.invalid",
        **where,
    )


@pytest.mark.slow
def test_on_sqlite(sqlite_template: Path) -> None:
    def make(resources: ExitStack) -> Services:
        folder = Path(resources.enter_context(tempfile.TemporaryDirectory()))
        shutil.copy(sqlite_template, folder / "lethe.db")
        services = Services(timed(data_dir=folder))
        resources.callback(services.close)
        # The machine simulates crashes of processes, not of the disk.
        event.listen(services.database.engine, "connect", lambda c, _: c.execute("PRAGMA synchronous=OFF"))
        return services

    run(make, examples=EXAMPLES)


@pytest.mark.slow
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_on_postgresql(database_url: str, tmp_path: Path) -> None:
    services = Services(timed(data_dir=tmp_path, database_url=database_url))
    tables = ", ".join(table.name for table in Base.metadata.sorted_tables)

    def make(_: ExitStack) -> Services:
        with services.database.writing() as session:
            # The trigger that protects the audit log would refuse this.
            session.execute(text("SET LOCAL session_replication_role = replica"))
            session.execute(text(f"TRUNCATE {tables} CASCADE"))
        return services

    try:
        run(make, examples=max(EXAMPLES // 6, 1))
    finally:
        services.close()

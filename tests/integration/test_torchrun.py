"""One job on two torchrun processes: both compute it, it survives the loss of one, and both end."""

import itertools
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from app.core.settings import Settings
from tests import eventually
from tests.faults.live import JOB_SECONDS, Live
from tests.integration.model_api import newest_statement
from tests.integration.process_group import ProcessGroup, command, process_group

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
END_SECONDS = 180.0  # generous: torchrun kills remaining processes after 30
TRIES = 3  # a job may finish before a test on a busy machine sees it start
people = (f"s{number}" for number in itertools.count())  # each is erased once, and two fill a batch


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path, redis_url: str) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("torchrun")
    shutil.copy(sqlite_template, folder / "lethe.db")
    settings = Settings(
        data_dir=folder / "data",
        database_url=f"sqlite:///{folder / 'lethe.db'}",
        redis_url=redis_url,
        queue_name=f"test-{secrets.token_hex(8)}",
        heartbeat_seconds=1,
        dispatch_interval_seconds=0.1,
        retry_backoff_seconds=0.1,
        lease_seconds=2,
        rank_timeout_seconds=JOB_SECONDS,
        drain_seconds=20,
        create_keys=True,
    )
    running = Live(settings, folder)
    yield running
    running.close()


@pytest.fixture
def group(live: Live) -> Iterator[ProcessGroup]:
    with process_group(live.settings, live.folder / f"torchrun-{secrets.token_hex(4)}.log") as started:
        if live.gateway.get("/v1/models/toy", headers=live.admin).status_code == 404:
            live.register()
        yield started


def test_the_tested_command_is_the_documented_one() -> None:
    tested = command(nnodes=2, nproc=4, node_rank=0, address="ADDRESS")
    words = [word.rsplit("/", 1)[-1] for word in tested]
    assert f"`{' '.join(words)}`" in (ROOT / "docs" / "scaling.md").read_text()


def test_an_erasure_is_done_and_certified_by_both_ranks(live: Live, group: ProcessGroup) -> None:
    live.wait_until_completed(live.erase(next(people), next(people)))
    assert live.newest_job().attempt == 1
    runtime = newest_statement(live.services).predicate.runtime
    assert (runtime.world_size, runtime.device, runtime.deterministic) == (2, "cpu", True)
    live.check()


def test_a_rank_killed_in_the_middle_of_a_job_costs_one_attempt(live: Live, group: ProcessGroup) -> None:
    for _ in range(TRIES):
        erasure, follower = _joined(live, group)
        follower.kill()
        live.wait_until_completed(erasure)
        if live.newest_job().attempt > 1:
            break
    assert live.newest_job().attempt == 2
    assert group.said("attempt failed", "RankLost")
    assert newest_statement(live.services).predicate.runtime.world_size == 2, "there is a new one"
    assert group.torchrun.poll() is None
    live.check()


def test_a_rank_killed_between_jobs_costs_none(live: Live, group: ProcessGroup) -> None:
    group.follower().kill()
    live.wait_until_completed(live.erase(next(people), next(people)))
    assert live.newest_job().attempt == 1
    live.check()


def test_a_group_asked_to_stop_finishes_its_job_and_leaves_no_process(
    live: Live, group: ProcessGroup
) -> None:
    erasure, follower = _joined(live, group)
    follower.suspend()
    group.torchrun.terminate()
    eventually(lambda: group.said("asked to stop"), within=END_SECONDS)
    follower.resume()
    assert group.end(within=END_SECONDS) == []
    assert live.get(erasure)["state"] == "completed"
    assert live.newest_job().attempt == 1
    live.check()


def test_ranks_do_not_outlive_a_torchrun_that_was_killed(live: Live, group: ProcessGroup) -> None:
    group.follower()
    group.torchrun.kill()
    assert group.end(within=END_SECONDS) == []


def _joined(live: Live, group: ProcessGroup) -> tuple[str, psutil.Process]:
    """Return an erasure under way and the following rank that has just joined its attempt."""
    for _ in range(TRIES):
        group.follower()
        erasure = live.erase(next(people), next(people))
        follower = group.joined(lambda at=erasure: live.get(at)["state"] == "completed")  # type: ignore[misc]
        if follower is not None:
            return erasure, follower
    raise AssertionError("every job was over before a rank was seen to join it")

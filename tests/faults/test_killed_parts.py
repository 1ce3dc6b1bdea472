"""Parts of the system die at bad moments; every request is completed, once, and nothing is left behind."""

import signal
import subprocess
from collections.abc import Iterator
from uuid import UUID

import psutil
import pytest

from app import process
from app.db.states import JobState
from app.db.transitions import FUNCTION
from app.queueing import RqMessages
from tests import eventually
from tests.faults.live import JOB_SECONDS, Live

pytestmark = pytest.mark.slow
everywhere = pytest.mark.parametrize("live", ["sqlite", "postgresql"], indirect=True, scope="module")
on_sqlite = pytest.mark.parametrize("live", ["sqlite"], indirect=True, scope="module")

Worker = subprocess.Popen[bytes]


@pytest.fixture
def worker(live: Live) -> Iterator[Worker]:
    running = live.start("worker")
    if not live.asked and live.gateway.get("/v1/models/toy", headers=live.admin).status_code == 404:
        live.register()
    yield running
    process.stop(running, grace=30)


def gone(running: psutil.Process) -> bool:
    return not running.is_running() or running.status() == psutil.STATUS_ZOMBIE


@everywhere
def test_a_worker_killed_during_a_job_takes_its_attempt_along_and_another_finishes(
    live: Live, worker: Worker
) -> None:
    erasure = live.erase("s1", "s2")
    live.wait_for_job(JobState.RUNNING)
    attempt = live.attempt_of(worker)
    worker.kill()
    worker.wait()
    eventually(lambda: gone(attempt), within=5)
    successor = live.start("worker")
    live.wait_until_completed(erasure)
    job = live.newest_job()
    assert (job.state, job.attempt) == (JobState.DONE, 2)
    process.stop(successor, grace=30)
    live.check()


@on_sqlite
def test_a_killed_attempt_is_reported_by_its_parent_and_tried_again_at_once(
    live: Live, worker: Worker
) -> None:
    erasure = live.erase("s3", "s4")
    live.wait_for_job(JobState.RUNNING)
    live.attempt_of(worker).kill()
    again = eventually(lambda: (job := live.newest_job()).attempt == 2 and job, within=4)
    assert "SIGKILL" in str(again.error)
    live.wait_until_completed(erasure)
    assert worker.poll() is None
    live.check()


@everywhere
def test_a_flushed_queue_and_a_killed_dispatcher_lose_no_job(live: Live) -> None:
    erasure = live.erase("s5", "s6")
    queued = live.wait_for_job(JobState.QUEUED)
    eventually(lambda: live.services.queue.get_job_ids())
    live.dispatcher.kill()
    live.dispatcher.wait()
    live.services.redis.flushall()
    live.dispatcher = live.start("dispatcher")
    worker = live.start("worker")
    live.wait_until_completed(erasure)
    job = live.newest_job()
    assert (job.id, job.attempt) == (queued.id, 1), "the lost message cost no attempt"
    process.stop(worker, grace=30)
    live.check()


@on_sqlite
def test_a_queue_flushed_under_a_running_job_disturbs_neither_it_nor_the_next(
    live: Live, worker: Worker
) -> None:
    for subjects in (("s7", "s8"), ("s9", "s10")):
        erasure = live.erase(*subjects)
        live.wait_for_job(JobState.RUNNING)
        live.services.redis.flushall()
        live.wait_until_completed(erasure)
        assert live.newest_job().attempt == 1
    live.check()


@on_sqlite
def test_a_worker_asked_to_stop_finishes_its_job_first(live: Live, worker: Worker) -> None:
    erasure = live.erase("s11", "s12")
    live.wait_for_job(JobState.RUNNING)
    attempt = live.attempt_of(worker)
    attempt.send_signal(signal.SIGTERM)  # as a service manager does, that asks the whole group
    worker.terminate()
    assert worker.wait(JOB_SECONDS) == 0
    assert live.get(erasure)["state"] == "completed"
    assert live.newest_job().attempt == 1
    live.check()


@on_sqlite
def test_a_message_delivered_again_and_again_runs_once(live: Live, worker: Worker) -> None:
    second = live.start("worker")
    erasure = live.erase("s13", "s14")
    job = live.wait_for_job(JobState.RUNNING)
    for _ in range(2):
        RqMessages(live.services.queue).send(FUNCTION["unlearn"], job.id, UUID(str(job.token)))  # type: ignore[index]
    live.wait_until_completed(erasure)
    eventually(lambda: not live.services.queue.get_job_ids(), within=JOB_SECONDS)
    process.stop(second, grace=30)
    assert live.newest_job().attempt == 1
    live.check()

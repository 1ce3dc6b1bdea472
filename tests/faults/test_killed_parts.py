"""Parts of the service die at bad moments. Every request is completed once, and no debris is left."""

import signal
import subprocess
from collections.abc import Iterator
from uuid import UUID

import psutil
import pytest

from app.core import process
from app.core.queue import RqMessages
from app.db.states import JobState
from app.db.transitions import RUN
from tests import eventually
from tests.faults.live import JOB_SECONDS, Live

pytestmark = pytest.mark.slow
everywhere = pytest.mark.parametrize("live", ["sqlite", "postgresql"], indirect=True, scope="module")
on_sqlite = pytest.mark.parametrize("live", ["sqlite"], indirect=True, scope="module")

Worker = subprocess.Popen[bytes]


@pytest.fixture
def worker(live: Live) -> Iterator[Worker]:
    running = live.start("worker")
    if not live.is_registered():
        live.register()
    yield running
    process.stop(running, grace=JOB_SECONDS)


@pytest.fixture
def registered(live: Live) -> None:
    """Register the model if no test before this one has, with a worker that is stopped afterwards."""
    if not live.is_registered():
        running = live.start("worker")
        live.register()
        process.stop(running, grace=JOB_SECONDS)


def has_ended(running: psutil.Process) -> bool:
    """Say whether a process has ended, even if nobody has reaped it yet."""
    return not running.is_running() or running.status() == psutil.STATUS_ZOMBIE


@everywhere
def test_a_worker_killed_during_a_job_takes_its_attempt_along_and_another_finishes(
    live: Live, worker: Worker
) -> None:
    with live.attempts_waiting():
        erasure = live.erase("s1", "s2")
        live.wait_for_job(JobState.RUNNING)
        attempt = live.attempt_of(worker)
        worker.kill()
        worker.wait()
        eventually(lambda: has_ended(attempt))
    successor = live.start("worker")
    live.wait_until_completed(erasure)
    job = live.newest_job()
    assert (job.state, job.attempt) == (JobState.DONE, 2)
    process.stop(successor, grace=JOB_SECONDS)
    live.check()


@on_sqlite
def test_a_killed_attempt_is_reported_by_its_parent_and_tried_again_at_once(
    live: Live, worker: Worker
) -> None:
    with live.attempts_waiting():
        erasure = live.erase("s3", "s4")
        live.wait_for_job(JobState.RUNNING)
        live.attempt_of(worker).kill()
    eventually(lambda: live.newest_job().attempt == 2, within=JOB_SECONDS)
    assert "SIGKILL" in str(live.newest_job().error)
    live.wait_until_completed(erasure)
    assert worker.poll() is None
    live.check()


@everywhere
@pytest.mark.usefixtures("registered")
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
    assert (job.id, job.attempt) == (queued.id, 1), "the lost message used up an attempt"
    process.stop(worker, grace=JOB_SECONDS)
    live.check()


@on_sqlite
def test_a_queue_flushed_under_a_running_job_disturbs_neither_it_nor_the_next(
    live: Live, worker: Worker
) -> None:
    for subjects in (("s7", "s8"), ("s9", "s10")):
        with live.attempts_waiting():
            erasure = live.erase(*subjects)
            live.wait_for_job(JobState.RUNNING)
            live.services.redis.flushall()
        live.wait_until_completed(erasure)
        assert live.newest_job().attempt == 1
    live.check()


@on_sqlite
def test_a_worker_asked_to_stop_finishes_its_job_first(live: Live, worker: Worker) -> None:
    with live.attempts_waiting():
        erasure = live.erase("s11", "s12")
        live.wait_for_job(JobState.RUNNING)
        attempt = live.attempt_of(worker)
        for running in (attempt, attempt.parent()):  # a service manager signals the whole process group
            assert running is not None
            running.send_signal(signal.SIGTERM)
        worker.terminate()
    assert worker.wait(JOB_SECONDS) == 0
    assert live.get(erasure)["state"] == "completed"
    assert live.newest_job().attempt == 1
    live.check()


@on_sqlite
def test_a_message_delivered_again_and_again_runs_once(live: Live, worker: Worker) -> None:
    second = live.start("worker")
    with live.attempts_waiting():
        erasure = live.erase("s13", "s14")
        job = live.wait_for_job(JobState.RUNNING)
        for _ in range(2):
            RqMessages(live.services.queue).send(RUN, job.id, UUID(str(job.token)))
    live.wait_until_completed(erasure)
    eventually(lambda: not live.services.queue.get_job_ids(), within=JOB_SECONDS)
    process.stop(second, grace=JOB_SECONDS)
    assert live.newest_job().attempt == 1
    live.check()

"""What RQ calls, by string name. A job is two ids; the work is done by a fresh process."""

import sys
import time
from uuid import UUID

from sqlalchemy.exc import SQLAlchemyError

from app import logs, process
from app.bootstrap import Services
from app.clock import now
from app.db import transitions
from app.db.states import JobState
from app.db.tables import Job
from worker.pipeline.scratch import sweep

log = logs.get("worker")
_services: list[Services] = []
LOOK_SECONDS = 0.5


class Drain:
    """Since when this worker is asked to stop."""

    _since: float | None = None

    def begin(self) -> None:
        self._since = self._since or time.monotonic()

    @property
    def begun(self) -> bool:
        return self._since is not None

    def is_over(self, seconds: float) -> bool:
        return self._since is not None and time.monotonic() - self._since >= seconds


_drain = Drain()


def asked_to_stop() -> None:
    """The attempt under way may go on for a while, and is handed back when it takes longer."""
    _drain.begin()


def use(services: Services) -> None:
    """RQ calls functions by name, without a place to hand them anything: this is that place."""
    _services[:] = [services]


def register(job_id: str, token: str) -> None:
    _run_attempt(job_id, token)


def unlearn(job_id: str, token: str) -> None:
    _run_attempt(job_id, token)


def append(job_id: str, token: str) -> None:
    _run_attempt(job_id, token)


def evaluate(job_id: str, token: str) -> None:
    _run_attempt(job_id, token)


def audit(job_id: str, token: str) -> None:
    _run_attempt(job_id, token)


def _run_attempt(job_id: str, token: str) -> None:
    if not _is_wanted(UUID(job_id), UUID(token)):
        log.info("message of an attempt that has begun or is over", job=job_id)
        return
    # -P: a folder named `app` where the worker was started must not take the place of ours.
    child = process.spawn([sys.executable, "-P", "-m", "worker.attempt", job_id, token])
    try:
        while not process.wait(child, LOOK_SECONDS):
            if _drain.is_over(_services[0].settings.drain_seconds):
                process.kill(child)
    except BaseException:  # a second SIGTERM: stop now, another worker will finish
        process.kill(child)
        _ended_badly(job_id, token, process.describe_end(child.returncode))
        raise
    if child.returncode != 0:
        _ended_badly(job_id, token, process.describe_end(child.returncode))


def _is_wanted(job_id: UUID, token: UUID) -> bool:
    """Spares a process for a message that came twice. Its claim decides; without a database it may try."""
    services = _services[0]
    try:
        with services.database.reading() as session:
            return transitions.is_claimable(session, job_id, token)
    except SQLAlchemyError as problem:
        log.warning("database away", problem=type(problem).__name__)
        return True


def _ended_badly(job_id: str, token: str, end: str) -> None:
    log.warning("attempt ended badly", job=job_id, end=end)
    sweep(_services[0].settings)
    try:
        _report_end(_services[0], UUID(job_id), UUID(token), end)
    except SQLAlchemyError as problem:
        log.warning("database away", problem=type(problem).__name__)


def _report_end(services: Services, job_id: UUID, token: UUID, end: str) -> None:
    """The process could not say itself that it failed; without this the dispatcher waits for its silence."""
    with services.database.writing() as session:
        job = session.get(Job, job_id, with_for_update=True)
        if job is None or job.token != token or job.state != JobState.RUNNING:
            return
        if _drain.begun:
            transitions.hand_back(session, job, now())
            return
        transitions.attempt_failed(
            session,
            job,
            error=f"the worker process ended: {end}",
            now=now(),
            max_attempts=services.settings.max_attempts,
            backoff=services.settings.retry_backoff_seconds,
        )

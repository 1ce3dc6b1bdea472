"""What RQ calls, by string name. A job is two ids; the work is done by a fresh process."""

import sys
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
    # -P: a folder named `app` where the worker was started must not take the place of ours.
    child = process.spawn([sys.executable, "-P", "-m", "worker.attempt", job_id, token])
    try:
        code = child.wait()
    except BaseException:  # a second SIGTERM: stop now, another worker will finish
        process.kill(child)
        _ended_badly(job_id, token, process.describe_end(child.returncode))
        raise
    if code != 0:
        _ended_badly(job_id, token, process.describe_end(code))


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
        if job is not None and job.token == token and job.state == JobState.RUNNING:
            transitions.attempt_failed(
                session,
                job,
                error=f"the worker process ended: {end}",
                now=now(),
                max_attempts=services.settings.max_attempts,
                backoff=services.settings.retry_backoff_seconds,
            )

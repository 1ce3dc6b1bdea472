"""What RQ calls, by string name. A job is two ids; the work is done by a fresh process."""

import sys
from uuid import UUID

from app import logs, process
from app.bootstrap import Services
from app.clock import now
from app.db import transitions
from app.db.states import JobState
from app.db.tables import Job

log = logs.get("worker")
_services: list[Services] = []


def use(services: Services) -> None:
    """RQ calls functions by name, without a place to hand them anything: this is that place."""
    _services[:] = [services]


def register(job_id: str, token: str) -> None:
    _run_attempt(job_id, token)


def unlearn(job_id: str, token: str) -> None:
    _run_attempt(job_id, token)


def _run_attempt(job_id: str, token: str) -> None:
    child = process.spawn([sys.executable, "-m", "worker.attempt", job_id, token])
    try:
        code = child.wait()
    except BaseException:  # a second SIGTERM: stop now, the dispatcher lets another worker finish
        process.kill(child)
        raise
    if code != 0:
        log.warning("attempt ended badly", job=job_id, end=process.describe_end(code))
        _report_end(UUID(job_id), UUID(token), process.describe_end(code))


def _report_end(job_id: UUID, token: UUID, end: str) -> None:
    """The process could not say itself that it failed; without this the dispatcher waits for its silence."""
    services = _services[0]
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

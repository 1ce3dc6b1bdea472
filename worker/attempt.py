"""One attempt at one job, in a process of its own: claim the job, send heartbeats, run it, end.

    python -m worker.attempt JOB TOKEN

Exit code 0 means that the outcome, good or bad, is in SQL. Any other code means that it is not. The worker
runs attempts through a fork server, `python -m worker.attempt --serve`, whose imports are done before a job
arrives. Settings and keys are read by the attempt itself, when its job has arrived. If it is rank 0 of
several, its environment says where they meet.
"""

import os
import resource
import signal
import sys
import threading
import time
import traceback
from uuid import UUID

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import configure_mappers

from app.core import logging
from app.core.clock import now
from app.core.settings import load_settings
from app.core.vault import KeyProblem
from app.db import paths, rollback_guard, transitions
from app.db.states import JobKind, JobState
from app.db.tables import Job
from app.services import Services
from worker import fork_server
from worker.distributed.rendezvous import process_group
from worker.errors import WorkerProblem, cause_of, what_to_repair
from worker.fork_server import PREPARE

log = logging.get_logger("attempt")
FENCED = 75  # exit code: another attempt took over, and this one may write nothing more
POLL_SECONDS = 0.5  # how often the attempt checks that it still owns its job
GRACE_SECONDS = 2.0  # how long a cancelled solve may take to end by itself


def main(job_id: UUID, token: UUID) -> None:
    """Claim the job and run it. Return without doing anything if it cannot be claimed."""
    for number in (signal.SIGTERM, signal.SIGINT):  # a stop sent to the whole group lets the attempt finish
        signal.signal(number, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core dump would contain weights without noise
    settings = load_settings()
    logging.configure(settings)
    services = Services(settings)
    with services.database.writing() as session:
        if not transitions.claim(session, job_id, token, now()):
            log.info("job not claimed: another attempt has it, or it is over", job=str(job_id))
            return
        job = session.get_one(Job, job_id)
    over = threading.Event()
    threading.Thread(
        target=_send_heartbeats, args=(services, job_id, token, over), name="heartbeat", daemon=True
    ).start()
    try:
        _run_traced(services, job, token)
    except transitions.TokenLost:
        if not _clean_up_if_cancelled(services, job_id, token):
            log.warning("fenced off", job=str(job_id))
            sys.exit(FENCED)
    finally:
        over.set()
    services.close()


def _run_traced(services: Services, job: Job, token: UUID) -> None:
    kind = JobKind(job.kind)
    with services.tracer.span(
        "attempt", parent=job.traceparent, job=job.id, model=job.model_id, kind=kind, attempt=job.attempt
    ):
        _run_or_report(services, kind, job.id, token)


def _run_or_report(services: Services, kind: JobKind, job_id: UUID, token: UUID) -> None:
    try:
        with services.database.reading() as session:
            rollback_guard.check(session, services.settings)
        _run(services, kind, job_id, token)
        rollback_guard.remember(services.database, services.settings)
    except transitions.TokenLost:
        raise
    except Exception as problem:
        log.error(
            "attempt failed",
            job=str(job_id),
            kind=type(problem).__name__,
            where=logging.where(problem.__traceback__),
        )
        _report_failure(services, job_id, token, problem)


def _run(services: Services, kind: JobKind, job_id: UUID, token: UUID) -> None:
    # Importing torch takes seconds. By now the job is claimed and its heartbeats are being sent.
    from worker import devices
    from worker.distributed.rank0 import form_team
    from worker.jobs import JOBS

    devices.use_deterministic_algorithms()
    with form_team(services.settings, process_group(os.environ)) as team:
        JOBS[kind](services, job_id, token, team)


def _send_heartbeats(services: Services, job_id: UUID, token: UUID, over: threading.Event) -> None:
    """Send heartbeats until `over` is set. End the process if it no longer owns its job."""
    interval = services.settings.heartbeat_seconds
    last_beat = time.monotonic()  # the claim counts as the first one
    outage = logging.OutageLog(log, "database")
    while not over.wait(min(POLL_SECONDS, interval)):
        try:
            if not _check_ownership(services, job_id, token, over):
                return
            if time.monotonic() - last_beat >= interval:
                last_beat = time.monotonic()
                with services.database.writing() as session:
                    transitions.heartbeat(session, job_id, token, now())
            outage.over()
        except transitions.TokenLost:
            continue  # the next check finds out why
        except SQLAlchemyError as problem:
            outage.failed(problem)


def _check_ownership(services: Services, job_id: UUID, token: UUID, over: threading.Event) -> bool:
    """Return whether this attempt owns its job, or False once the job is done.

    If another attempt or a cancellation took the job away, nothing computed here may be used: the process
    ends at once.
    """
    with services.database.reading() as session:
        if transitions.owns_job(session, job_id, token):
            return True
        done = session.get_one(Job, job_id).state == JobState.DONE
        cancelled = transitions.was_cancelled(session, job_id)
    if (done and not cancelled) or over.wait(GRACE_SECONDS if cancelled else 0.0):
        return False
    if cancelled:
        _clean_up_if_cancelled(services, job_id, token)
    log.warning("fenced off", job=str(job_id))
    os._exit(FENCED)


def _clean_up_if_cancelled(services: Services, job_id: UUID, token: UUID) -> bool:
    """Delete this attempt's files if the job was cancelled, and return whether it was.

    A job can be cancelled only before its draw, so nothing refers to those files.
    """
    with services.database.reading() as session:
        if not transitions.was_cancelled(session, job_id):
            return False
    services.storage.delete(paths.attempt(job_id, token))
    log.info("cancelled", job=str(job_id))
    return True


def _report_failure(services: Services, job_id: UUID, token: UUID, problem: Exception) -> None:
    with services.database.writing() as session:
        transitions.fence(session, job_id, token, now())
        transitions.attempt_failed(
            session,
            session.get_one(Job, job_id),
            cause=cause_of(problem),
            error=describe(problem),
            now=now(),
            max_attempts=services.settings.max_attempts,
            backoff=services.settings.retry_backoff_seconds,
            max_deaths=services.settings.max_deaths,
        )


def describe(problem: Exception) -> str:
    """Describe an exception for storage and display.

    Only our own messages are quoted. Those of other libraries may contain data, so for them the description
    is the exception's type and the function that raised it. A fault of the infrastructure also says what has
    to be repaired.
    """
    if isinstance(problem, KeyProblem | WorkerProblem | rollback_guard.LogOlder):
        return str(problem)
    frames = traceback.extract_tb(problem.__traceback__)
    last = frames[-1] if frames else None
    place = f"{type(problem).__name__} in {last.name}" if last else type(problem).__name__
    repair = what_to_repair(problem)
    return place if repair is None else f"{repair} ({place})"


def prepare(model_id: UUID) -> None:
    """Prepare missing curvature sketches, those of this model first. The worker may kill this at any time."""
    from worker.sketches import prepare_sketches

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    settings = load_settings()
    logging.configure(settings)
    services = Services(settings)
    try:
        prepare_sketches(services, model_id)
    except Exception as problem:  # the next erasure then solves without a sketch
        log.warning(
            "no curvature sketch", kind=type(problem).__name__, where=logging.where(problem.__traceback__)
        )
    services.close()


def run_child(first: str, second: str) -> None:
    """Run what the worker asked for: an attempt, or, with `PREPARE` in front, preparations."""
    if first == PREPARE:
        prepare(UUID(second))
    else:
        main(UUID(first), UUID(second))


def child_name(first: str, *_: str) -> str:
    """Return the name of a child in the process list: that of its attempt, or `lethe-prepare`."""
    return "lethe-prepare" if first == PREPARE else process_name(first)


def process_name(job_id: str) -> str:
    """Return an attempt's name in the process list: `lethe` and the end of the job's id.

    >>> process_name("01a1ee47-b358-711e-9e62-4adfddb9be33")
    'lethe ddb9be33'
    """
    return f"lethe {job_id[-8:]}"


def serve(commands: int, replies: int) -> None:
    """Import what every attempt needs, then fork an attempt for each job that arrives."""
    import worker.distributed.rank0
    import worker.jobs
    import worker.sketches  # noqa: F401 - imported for the attempts
    from worker import preload

    configure_mappers()
    preload.import_libraries(*preload.DATABASES)
    fork_server.serve(
        run_child,
        commands,
        replies,
        name=child_name,
    )


if __name__ == "__main__":
    if sys.argv[1] == fork_server.SERVE:
        serve(int(sys.argv[2]), int(sys.argv[3]))
    else:
        run_child(sys.argv[1], sys.argv[2])

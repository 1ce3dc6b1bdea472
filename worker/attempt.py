"""One attempt at one job, as a process of its own: claims it, keeps its heart beating, runs it, ends.

    python -m worker.attempt JOB TOKEN

Exit code 0: the outcome is in SQL, whatever it is. Anything else: it is not.
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

from app import log_seen, logs
from app.bootstrap import Services
from app.clock import now
from app.db import paths, transitions
from app.db.states import JobKind, JobState
from app.db.tables import Job
from app.settings import load_settings
from app.vault import KeyProblem
from worker.distributed import launch
from worker.distributed.meeting import Meeting
from worker.problems import WorkerProblem

log = logs.get("attempt")
FENCED = 75  # another attempt took over; nothing of ours may be written any more
LOOK_SECONDS = 0.5  # how often it is looked at whether the job is still ours
GRACE_SECONDS = 2.0  # in which a solve that was cancelled ends by itself


def main(job_id: UUID, token: UUID) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):  # a stop that reaches the whole group still lets us finish
        signal.signal(number, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core dump would hold un-noised weights
    settings = load_settings()
    logs.configure(settings)
    services = Services(settings)
    with services.database.writing() as session:
        if not transitions.claim(session, job_id, token, now()):
            log.info("not ours to do", job=str(job_id))
            return
        job = session.get_one(Job, job_id)
    kind, over = JobKind(job.kind), threading.Event()
    threading.Thread(
        target=_beat, args=(services, job_id, token, over), name="heartbeat", daemon=True
    ).start()
    try:
        with (
            services.tracer.span(
                "attempt",
                parent=job.traceparent,
                job=job_id,
                model=job.model_id,
                kind=kind,
                attempt=job.attempt,
            ),
            launch.meeting(settings) as meeting,
        ):
            _work_or_report(services, kind, job_id, token, meeting)
    except transitions.TokenLost:
        if not _cancelled(services, job_id, token):
            log.warning("fenced off", job=str(job_id))
            sys.exit(FENCED)
    finally:
        over.set()
    services.close()


def _work_or_report(
    services: Services, kind: JobKind, job_id: UUID, token: UUID, meeting: Meeting | None
) -> None:
    try:
        with services.database.reading() as session:
            log_seen.check(session, services.settings)
        _work(services, kind, job_id, token, meeting)
        log_seen.remember(services)
    except transitions.TokenLost:
        raise
    except Exception as problem:
        log.error(
            "attempt failed",
            job=str(job_id),
            kind=type(problem).__name__,
            where=logs.where(problem.__traceback__),
        )
        _report(services, job_id, token, problem)


def _work(services: Services, kind: JobKind, job_id: UUID, token: UUID, meeting: Meeting | None) -> None:
    # Imported only now: torch takes seconds, and the job is claimed and beating already.
    from worker import devices
    from worker.distributed import current
    from worker.pipeline import run

    devices.be_deterministic()
    current.form(services.settings, meeting)
    try:
        run.JOBS[kind](services, job_id, token)
    finally:
        current.disband()


def _beat(services: Services, job_id: UUID, token: UUID, over: threading.Event) -> None:
    """A lost token ends the process: nothing it still computes may be of use."""
    every = services.settings.heartbeat_seconds
    beaten_at = time.monotonic()  # by the claim
    while not over.wait(min(LOOK_SECONDS, every)):
        try:
            if not _is_ours(services, job_id, token, over):
                return
            if time.monotonic() - beaten_at >= every:
                beaten_at = time.monotonic()
                with services.database.writing() as session:
                    transitions.heartbeat(session, job_id, token, now())
        except transitions.TokenLost:
            continue  # the next look tells why
        except SQLAlchemyError as problem:
            log.warning("database away", problem=type(problem).__name__)


def _is_ours(services: Services, job_id: UUID, token: UUID, over: threading.Event) -> bool:
    """False when the job is done: it may have ended by our own hand since the last look."""
    with services.database.reading() as session:
        if transitions.holds(session, job_id, token):
            return True
        done = session.get_one(Job, job_id).state == JobState.DONE
        cancelled = transitions.was_cancelled(session, job_id)
    if (done and not cancelled) or over.wait(GRACE_SECONDS if cancelled else 0.0):
        return False
    if cancelled:
        _cancelled(services, job_id, token)
    log.warning("fenced off", job=str(job_id))
    os._exit(FENCED)


def _cancelled(services: Services, job_id: UUID, token: UUID) -> bool:
    """Whether its owner cancelled the job. Then no draw was made, and nothing refers to what we wrote."""
    with services.database.reading() as session:
        if not transitions.was_cancelled(session, job_id):
            return False
    services.storage.delete(paths.attempt(job_id, token))
    log.info("cancelled", job=str(job_id))
    return True


def _report(services: Services, job_id: UUID, token: UUID, problem: Exception) -> None:
    with services.database.writing() as session:
        transitions.fence(session, job_id, token, now())
        transitions.attempt_failed(
            session,
            session.get_one(Job, job_id),
            error=describe(problem),
            now=now(),
            max_attempts=services.settings.max_attempts,
            backoff=services.settings.retry_backoff_seconds,
        )


def describe(problem: Exception) -> str:
    """Its kind and place. Messages of foreign errors may quote data, so they are left out."""
    if isinstance(problem, KeyProblem | WorkerProblem | log_seen.LogOlder):
        return str(problem)
    frames = traceback.extract_tb(problem.__traceback__)
    last = frames[-1] if frames else None
    return f"{type(problem).__name__} in {last.name}" if last else type(problem).__name__


if __name__ == "__main__":
    main(UUID(sys.argv[1]), UUID(sys.argv[2]))

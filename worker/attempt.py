"""One attempt at one job, as a process of its own: claims it, keeps its heart beating, runs it, ends.

    python -m worker.attempt JOB TOKEN

Exit code 0: the outcome is in SQL, whatever it is. Anything else: it is not.
"""

import os
import resource
import signal
import sys
import threading
import traceback
from uuid import UUID

from sqlalchemy.exc import SQLAlchemyError

from app import logs
from app.bootstrap import Services
from app.clock import now
from app.db import transitions
from app.db.states import JobKind, JobState
from app.db.tables import Job
from app.settings import load_settings
from app.vault import KeyProblem

log = logs.get("attempt")
FENCED = 75  # another attempt took over; nothing of ours may be written any more


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
        kind = JobKind(session.get_one(Job, job_id).kind)
    threading.Thread(target=_beat, args=(services, job_id, token), name="heartbeat", daemon=True).start()
    try:
        _work_or_report(services, kind, job_id, token)
    except transitions.TokenLost:
        log.warning("fenced off", job=str(job_id))
        sys.exit(FENCED)
    services.close()


def _work_or_report(services: Services, kind: JobKind, job_id: UUID, token: UUID) -> None:
    try:
        _work(services, kind, job_id, token)
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


def _work(services: Services, kind: JobKind, job_id: UUID, token: UUID) -> None:
    # Imported only now: torch takes seconds, and the job is claimed and beating already.
    import torch

    from worker.pipeline import run

    torch.use_deterministic_algorithms(True)

    run.JOBS[kind](services, job_id, token)


def _beat(services: Services, job_id: UUID, token: UUID) -> None:
    """A lost token ends the process at once: nothing it still computes may be of use."""
    pause = threading.Event()
    while not pause.wait(services.settings.heartbeat_seconds):
        try:
            if not _say_alive(services, job_id, token):
                return
        except SQLAlchemyError as problem:
            log.warning("database away", problem=type(problem).__name__)


def _say_alive(services: Services, job_id: UUID, token: UUID) -> bool:
    """False when the job is done: it may have ended by our own hand since the last beat."""
    try:
        with services.database.writing() as session:
            transitions.heartbeat(session, job_id, token, now())
    except transitions.TokenLost:
        with services.database.reading() as session:
            if session.get_one(Job, job_id).state == JobState.DONE:
                return False
        log.warning("fenced off", job=str(job_id))
        os._exit(FENCED)
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
    if isinstance(problem, KeyProblem):
        return str(problem)
    frames = traceback.extract_tb(problem.__traceback__)
    last = frames[-1] if frames else None
    return f"{type(problem).__name__} in {last.name}" if last else type(problem).__name__


if __name__ == "__main__":
    main(UUID(sys.argv[1]), UUID(sys.argv[2]))

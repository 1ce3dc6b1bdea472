"""Liveness: finding attempts that have stopped sending heartbeats, and giving them up."""

import time
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.core import logging
from app.db import transitions
from app.db.states import FailureCause, JobState
from app.db.tables import Job
from app.services import Services

log = logging.get_logger("dispatcher")


class Heartbeat(NamedTuple):
    """The latest heartbeat of a running attempt, as the database has it."""

    job_id: UUID
    token: UUID
    at: datetime


class HeartbeatMonitor:
    """Measures for how long each heartbeat has not changed, on this process's monotonic clock.

    The time in a heartbeat is never compared with our own. Machines disagree about the time of day, and their
    clocks jump. Whether a heartbeat has changed is the same on every clock.
    """

    def __init__(self, steady: Callable[[], float] = time.monotonic) -> None:
        """Start measuring. `steady` returns monotonic seconds."""
        self._steady = steady
        self._checked_at = steady()
        self._unchanged_for: dict[Heartbeat, float] = {}

    def silent_for(self, seconds: float, heartbeats: Iterable[Heartbeat]) -> list[Heartbeat]:
        """Return the heartbeats that have not changed for `seconds`. Pass those of all running attempts."""
        moment = self._steady()
        # If this process was suspended, it missed heartbeats. So the time between two calls counts for at
        # most a third of the limit, and every attempt gets several chances to be heard.
        passed = min(moment - self._checked_at, seconds / 3)
        self._checked_at = moment
        self._unchanged_for = {
            heartbeat: self._unchanged_for.get(heartbeat, -passed) + passed for heartbeat in heartbeats
        }
        return [heartbeat for heartbeat, silent in self._unchanged_for.items() if silent >= seconds]


def give_up_silent_attempts(services: Services, monitor: HeartbeatMonitor, now: datetime) -> None:
    """Record every attempt without a heartbeat for `LETHE_DEAD_AFTER_SECONDS` as failed."""
    with services.database.reading() as session:
        running = session.execute(
            select(Job.id, Job.token, Job.heartbeat_at).where(Job.state == JobState.RUNNING)
        ).all()
    heartbeats = [Heartbeat(job_id, token, at) for job_id, token, at in running if token and at]

    def give_up(session: Session, job: Job) -> None:
        log.warning("an attempt stopped sending heartbeats", job=str(job.id), attempt=job.attempt)
        transitions.attempt_failed(
            session,
            job,
            cause=FailureCause.SILENT,
            error="the worker stopped sending heartbeats",
            now=now,
            max_attempts=services.settings.max_attempts,
            backoff=services.settings.retry_backoff_seconds,
            max_deaths=services.settings.max_deaths,
        )

    for heartbeat in monitor.silent_for(services.settings.dead_after, heartbeats):
        unchanged = select(Job).where(
            Job.id == heartbeat.job_id,
            Job.token == heartbeat.token,
            Job.state == JobState.RUNNING,
            Job.heartbeat_at == heartbeat.at,
        )
        transitions.change_jobs(services.database, unchanged, give_up)

"""Messages from the queue: check each one, then run its job in a process of its own.

RQ would import and call any function that a message in Redis names. Redis is not trusted with that: someone
who can write to it may delay work, but must not be able to run code where the signing key is. A message may
therefore name one function, `worker.queue.run`, with two ids as its arguments, and nothing else.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import UUID

from redis import Redis
from rq import Queue
from rq.exceptions import DeserializationError
from rq.job import Job as RqJob
from rq.serializers import JSONSerializer
from sqlalchemy.exc import SQLAlchemyError

from app.core import logging, process
from app.core.clock import now
from app.db import transitions
from app.db.states import FailureCause, JobState
from app.db.tables import Job
from app.services import Services
from worker.data.scratch import sweep
from worker.distributed import launch
from worker.fork_server import PREPARE, ChildProcess, ForkServer

log = logging.get_logger("worker")
database_outage = logging.OutageLog(log, "database")
POLL_SECONDS = 0.5
_CALLBACKS = ("_success_callback_name", "_failure_callback_name", "_stopped_callback_name")


# -- messages -----------------------------------------------------------------------------------------------


class ForeignMessage(Exception):
    """A message that no dispatcher would send."""


class Message(RqJob):
    """An RQ job that cannot name code: its only function is `run`, and it has no callbacks."""

    runtime: "WorkerRuntime | None" = None
    has_extras = False

    def restore(self, raw_data: Any) -> Any:
        """Load the message from Redis, and strip everything that could make RQ call other code."""
        restored = super().restore(raw_data)
        self.has_extras = bool(
            any(getattr(self, name) for name in _CALLBACKS)
            or self.webhooks
            or self._dependency_ids
            or self.group_id
            or self.retries_left
            or self.repeats_left
        )
        for name in _CALLBACKS:  # RQ also calls them for abandoned jobs, which are never executed
            setattr(self, name, None)
        self.webhooks = []
        return restored

    @property
    def func(self) -> Callable[[str, str], None]:
        """Return `run`, bound to the worker that took this message. Nothing is looked up by name."""
        self.check()
        assert self.runtime is not None
        return partial(run, self.runtime)

    def check(self) -> None:
        """Raise `ForeignMessage` unless this is a message that a dispatcher sends."""
        try:
            name, arguments, extras = self.func_name, self.args, (self.kwargs, self.instance)
        except DeserializationError:
            raise ForeignMessage("the message is not JSON") from None
        if name != transitions.RUN:
            raise ForeignMessage("the message names an unknown function")
        if self.has_extras or any(extras):
            raise ForeignMessage("the message holds more than a function and its arguments")
        if len(arguments) != 2 or not all(_is_id(argument) for argument in arguments):
            raise ForeignMessage("the arguments are not two ids")


def _is_id(argument: object) -> bool:
    try:
        return isinstance(argument, str) and str(UUID(argument)) == argument
    except ValueError:
        return False


def open_queue(name: str, connection: Redis) -> Queue:
    """Open the queue so that everything RQ reads from it is a `Message`."""
    return Queue(name, connection=connection, serializer=JSONSerializer, job_class=Message)


# -- attempts -----------------------------------------------------------------------------------------------


class Drain:
    """Remembers when this worker was asked to stop."""

    _since: float | None = None

    def begin(self) -> None:
        """Start the clock. Later calls change nothing."""
        self._since = self._since or time.monotonic()

    @property
    def begun(self) -> bool:
        """Whether the worker was asked to stop."""
        return self._since is not None

    def is_over(self, seconds: float) -> bool:
        """Whether the worker was asked to stop at least `seconds` ago."""
        return self._since is not None and time.monotonic() - self._since >= seconds


class ClaimWatch:
    """Notices that the process of an attempt hangs before it has claimed its job.

    From the claim on, heartbeats tell whether an attempt is alive. Before it, nobody else would notice.
    """

    def __init__(
        self, services: Services, job_id: UUID, token: UUID, steady: Callable[[], float] = time.monotonic
    ) -> None:
        """Start the clock. `steady` returns monotonic seconds."""
        self._services, self._job_id, self._token, self._steady = services, job_id, token, steady
        self._since, self._claimed = steady(), False

    def hangs(self) -> bool:
        """Return whether the job is unclaimed after `claim_seconds`. While the database is down, wait."""
        if self._claimed or self._steady() - self._since < self._services.settings.claim_seconds:
            return False
        try:
            with self._services.database.reading() as session:
                self._claimed = not transitions.is_claimable(session, self._job_id, self._token)
        except SQLAlchemyError:
            return False
        if not self._claimed:
            log.warning("an attempt process did not claim its job", job=str(self._job_id))
        return not self._claimed


@dataclass(frozen=True)
class WorkerRuntime:
    """What a worker process needs to run attempts: services, fork servers, and whether it is stopping."""

    services: Services
    attempts: ForkServer
    followers: launch.Followers = field(default_factory=launch.Followers)
    drain: Drain = field(default_factory=Drain)
    queue_outage: logging.OutageLog = field(default_factory=lambda: logging.OutageLog(log, "queue"))


def run(runtime: WorkerRuntime, job_id: str, token: str) -> None:
    """Run one attempt at a job of any kind in a fresh process, and wait for it to end.

    Once the worker is asked to stop, the attempt has `drain_seconds` to finish. Then it is killed and its
    job is handed back to the dispatcher. A process that does not claim its job is killed as well, and the
    dispatcher announces the job again.
    """
    watch = ClaimWatch(runtime.services, UUID(job_id), UUID(token))
    if not _is_claimable(runtime.services, UUID(job_id), UUID(token)):
        log.info("skipped a message whose attempt has already begun or ended", job=job_id)
        return
    if runtime.attempts.end_idle():
        sweep(runtime.services.settings)  # a preparation was killed, and its scratch folder holds rows
    with launch.open_rendezvous(runtime.services.settings, runtime.followers) as place:
        environment = None if place is None else {**os.environ, **place.environment()}
        child = runtime.attempts.run(job_id, token, env=environment)
        try:
            while not child.wait(POLL_SECONDS):
                if runtime.drain.is_over(runtime.services.settings.drain_seconds) or watch.hangs():
                    child.kill()
        except BaseException:  # a second SIGTERM means stop now; another worker will finish the job
            child.kill()
            _clean_up(runtime, job_id, token, child)
            raise
    if child.returncode != 0:
        _clean_up(runtime, job_id, token, child)
    else:
        _prepare(runtime, UUID(job_id))


def _prepare(runtime: WorkerRuntime, job_id: UUID) -> None:
    """Prepare curvature sketches until the next message arrives, those of the job's model first.

    Nothing is prepared if sketches are turned off, the worker is stopping, or the database is down.
    """
    if runtime.services.settings.sketch_megabytes == 0 or runtime.drain.begun:
        return
    model_id = _model_of(runtime.services, job_id)
    if model_id is not None:
        runtime.attempts.run_idle(PREPARE, str(model_id))


def _model_of(services: Services, job_id: UUID) -> UUID | None:
    """Return the model that a job was about, or None if the database is down."""
    try:
        with services.database.reading() as session:
            return session.get_one(Job, job_id).model_id
    except SQLAlchemyError:
        return None


def _is_claimable(services: Services, job_id: UUID, token: UUID) -> bool:
    """Avoid starting a process for a duplicate message. The claim itself decides.

    If the database is down, assume that the job can be claimed.
    """
    try:
        with services.database.reading() as session:
            return transitions.is_claimable(session, job_id, token)
    except SQLAlchemyError as problem:
        database_outage.failed(problem)
        return True


def _clean_up(runtime: WorkerRuntime, job_id: str, token: str, child: ChildProcess) -> None:
    """Remove the scratch folder of an attempt that failed without reporting it, and report the failure."""
    assert child.returncode is not None
    end = process.describe_end(child.returncode)
    log.warning("attempt process failed", job=job_id, end=end)
    sweep(runtime.services.settings)
    try:
        report_end(runtime, UUID(job_id), UUID(token), end)
    except SQLAlchemyError as problem:
        database_outage.failed(problem)


def report_end(runtime: WorkerRuntime, job_id: UUID, token: UUID, end: str) -> None:
    """Record that an attempt's process ended, so that the dispatcher need not wait for missing heartbeats.

    While the worker drains, the job is handed back instead.
    """
    settings = runtime.services.settings
    with runtime.services.database.writing() as session:
        job = session.get(Job, job_id, with_for_update=True)
        if job is None or job.token != token or job.state != JobState.RUNNING:
            return
        if runtime.drain.begun:
            transitions.hand_back(session, job, now())
            return
        transitions.attempt_failed(
            session,
            job,
            cause=FailureCause.PROCESS_ENDED,
            error=f"the worker process ended: {end}",
            now=now(),
            max_attempts=settings.max_attempts,
            backoff=settings.retry_backoff_seconds,
            max_deaths=settings.max_deaths,
        )

"""The worker process: takes messages from RQ, records that it is alive, and stops gracefully.

It computes nothing itself and never imports torch. Each job runs in a fresh process (`worker.attempt`), which
is safe for CUDA, dies with this one, and returns its memory when it ends. A fork server keeps the imports of
these processes ready (`worker.fork_server`).
"""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from types import FrameType
from typing import Any

from redis.exceptions import RedisError
from rq import Queue, SimpleWorker
from rq.exceptions import StopRequested
from rq.job import Job as RqJob
from rq.serializers import JSONSerializer
from sqlalchemy import delete
from sqlalchemy.exc import SQLAlchemyError

from app.core import logging
from app.core.clock import now
from app.core.settings import Settings
from app.core.storage import StorageError
from app.core.vault import KeyProblem
from app.db import audit_log, rollback_guard
from app.db import log_store as certificate_log
from app.db.tables import WorkerSeen
from app.services import Services
from app.startup import check_deployment_key, refuse
from worker.data.scratch import sweep
from worker.fork_server import ForkServer
from worker.queue import ForeignMessage, Message, WorkerRuntime, database_outage, open_queue
from worker.signing import check_known, key_place, load_signer

log = logging.get_logger("worker")
ATTEMPT_MODULE = "worker.attempt"
FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0  # seconds between two tries to reach Redis


class Repeated:
    """Calls a function again and again while a block runs, in a thread of its own."""

    def __init__(
        self, name: str, seconds: float, action: Callable[[], None], *, at_once: bool = False
    ) -> None:
        """Prepare to call `action` every so many seconds: `at_once` for the first time, or after a pause."""
        self._seconds, self._action, self._at_once = seconds, action, at_once
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._repeat, name=name, daemon=True)

    def __enter__(self) -> "Repeated":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _repeat(self) -> None:
        if self._at_once:
            self._action()
        while not self._stop.wait(self._seconds):
            self._action()


@contextmanager
def presence(services: Services) -> Iterator[None]:
    """Keep this worker's name and the current time in SQL, so that `/readyz` can see a live worker."""
    name = f"{socket.gethostname()}-{os.getpid()}"

    def record() -> None:
        with services.database.writing() as session:
            session.merge(WorkerSeen(name=name, seen_at=now()))

    def remove() -> None:
        with services.database.writing() as session:
            session.execute(delete(WorkerSeen).where(WorkerSeen.name == name))

    seconds = services.settings.heartbeat_seconds
    try:
        with Repeated("presence", seconds, lambda: _log_database_errors(record), at_once=True):
            yield
    finally:
        _log_database_errors(remove)


def _log_database_errors(write: Callable[[], None]) -> None:
    try:
        write()
    except SQLAlchemyError as problem:
        database_outage.failed(problem)
    else:
        database_outage.over()


def audit_log_signer(services: Services) -> Repeated:
    """Sign the heads of the audit logs from time to time."""
    seconds = services.settings.audit_log_seconds
    return Repeated("audit-log", seconds, lambda: _log_database_errors(lambda: sign_audit_logs(services)))


def scratch_sweeper(settings: Settings) -> Repeated:
    """Sweep scratch folders at every heartbeat.

    A killed process may still hold its folder's lock at the moment when the worker sweeps after it.
    """

    def sweep_again() -> None:
        with suppress(OSError):  # a full or read-only disk; the next round tries again
            sweep(settings)

    return Repeated("sweeper", settings.heartbeat_seconds, sweep_again)


def sign_audit_logs(services: Services) -> None:
    """Sign the heads of the audit logs that are due, and append them to the certificate log.

    A log that was rolled back is not continued (see `rollback_guard`).
    """
    settings = services.settings
    interval = timedelta(seconds=settings.audit_log_seconds)
    try:
        with services.database.writing() as session:
            rollback_guard.check(session, settings)
            signer = load_signer(settings)
            signed = audit_log.sign_heads(session, signer, settings.log_origin, interval=interval)
    except (KeyProblem, rollback_guard.LogOlder) as problem:
        log.warning("the audit logs were not signed", problem=str(problem))
        return
    if signed:
        log.info("signed the heads of audit logs", tenants=signed)
        rollback_guard.remember(services.database, settings)


class Worker(SimpleWorker):
    """An RQ worker that runs only the messages a dispatcher sends.

    It also knows why it ended. RQ ends in the same way when asked to stop, after an error and without Redis.
    """

    runtime: WorkerRuntime
    max_connection_wait_time = LONGEST_WAIT
    failed = False
    """Whether something other than Redis ended the worker."""

    @classmethod
    def of(cls, services: Services, attempts: ForkServer) -> "Worker":
        """Create a worker for the queue of these services, whose attempts come from a fork server."""
        return cls.with_runtime(WorkerRuntime(services, attempts))

    @classmethod
    def with_runtime(cls, runtime: WorkerRuntime) -> "Worker":
        """Create a worker that continues with what an earlier one used, such as its fork server."""
        services = runtime.services
        worker = cls(
            [open_queue(services.settings.queue_name, services.redis)],
            connection=services.redis,
            serializer=JSONSerializer,
            job_class=Message,
            worker_ttl=60,
            job_monitoring_interval=5,
        )
        worker.runtime = runtime
        return worker

    def bootstrap(self, *arguments: Any, **options: Any) -> None:
        """Register in Redis, which answers if this succeeds."""
        super().bootstrap(*arguments, **options)
        self.runtime.queue_outage.over()

    def teardown(self) -> None:
        """Leave Redis, or let its entry of this worker expire if it does not answer."""
        try:
            super().teardown()  # type: ignore[no-untyped-call]
        except RedisError:
            listener = getattr(self, "pubsub_thread", None)
            if listener is not None:
                listener.stop()

    def execute_job(self, job: RqJob, queue: Queue) -> None:
        """Run a message from a dispatcher; delete any other."""
        try:
            assert isinstance(job, Message)
            job.check()
        except ForeignMessage as problem:
            log.error("message dropped", because=str(problem))
            queue.intermediate_queue.remove(job.id)
            self.connection.delete(job.key)
            return
        job.runtime = self.runtime
        try:
            super().execute_job(job, queue)
        except Exception as problem:  # RQ logs it and ends its loop
            self.failed = not isinstance(problem, RedisError)
            raise

    def request_stop(self, signum: int, frame: FrameType | None) -> None:
        """Start draining: the attempt under way gets `drain_seconds` to finish."""
        self.runtime.drain.begin()
        super().request_stop(signum, frame)  # type: ignore[no-untyped-call]

    def set_shutdown_requested_date(self) -> None:
        """Record the stop in Redis, ignoring errors: raised in the signal handler, one would end the job."""
        with suppress(RedisError):
            super().set_shutdown_requested_date()  # type: ignore[no-untyped-call]


def rotate_signing_key(settings: Settings) -> None:
    """Replace the signing key in use with the configured one, and sign the tree head with it."""
    services = Services(settings)
    try:
        with services.database.writing() as session:
            certificate_log.hand_over(
                session, load_signer(settings), settings.log_origin, key_place(settings)
            )
    except KeyProblem as problem:
        raise refuse(str(problem)) from None
    finally:
        services.close()


def check_signing_key(services: Services) -> None:
    """Exit if this worker could not sign and log its releases. If the database is down, check later."""
    try:
        with services.database.reading() as session:
            check_known(session, services.settings)
            rollback_guard.check(session, services.settings)
    except (KeyProblem, rollback_guard.LogOlder) as problem:
        raise refuse(str(problem)) from None
    except SQLAlchemyError as problem:
        log.warning("database unavailable, signing key will be checked later", problem=type(problem).__name__)


def renew_tree_head(services: Services) -> None:
    """Sign the tree head again if a retired key signed it. If the database is down, try at the next start."""
    try:
        with services.database.writing() as session:
            signer = load_signer(services.settings)
            if certificate_log.renew_head(session, signer, services.settings.log_origin):
                log.info("tree head signed with the current key")
    except SQLAlchemyError as problem:
        log.warning("database unavailable, tree head not checked", problem=type(problem).__name__)


def adopt_stored(services: Services) -> None:
    """Put under data keys what an earlier version stored. If something is not available, try next time."""
    try:
        if adopted := services.key_renewal.adopt_stored():
            log.info("stored identifiers and salts put under data keys", tasks=adopted)
    except (SQLAlchemyError, OSError, StorageError) as problem:
        log.warning(
            "database or storage unavailable, stored keys not checked", problem=type(problem).__name__
        )
    except KeyProblem as problem:
        log.error("stored identifiers or salts cannot be read", problem=str(problem))


def take_jobs(runtime: WorkerRuntime, pause: Callable[[float], None] = time.sleep) -> bool:
    """Take jobs until asked to stop, and return whether that is why it ended.

    While Redis does not answer, wait for it with growing pauses. The fork server and its imports stay, and
    SQL knows which jobs are due. A signal to stop ends a pause at once.
    """
    wait = FIRST_WAIT
    with suppress(StopRequested):
        while not runtime.drain.begun:
            _stop_when_asked(runtime)  # RQ has its own handlers while it works
            began = time.monotonic()
            try:
                worker = Worker.with_runtime(runtime)
                worker.work(logging_level="WARNING", with_scheduler=False)
                if worker.failed:
                    return False
            except RedisError as problem:
                runtime.queue_outage.failed(problem)
            if not runtime.drain.begun:
                _stop_when_asked(runtime)
                wait = FIRST_WAIT if time.monotonic() - began > LONGEST_WAIT else min(2 * wait, LONGEST_WAIT)
                pause(wait)
    return runtime.drain.begun


def _stop_when_asked(runtime: WorkerRuntime) -> None:
    """Let a signal interrupt whatever this thread does while it has no connection to Redis."""

    def stop(*_: object) -> None:
        if runtime.drain.begun:
            raise SystemExit(1)
        runtime.drain.begin()
        raise StopRequested

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)


def run(settings: Settings) -> None:
    """Take jobs until asked to stop. Exit with status 1 after an error, so that a supervisor restarts us.

    SQL knows which jobs were under way, so nothing is lost.
    """
    services = Services(settings)
    check_deployment_key(services)
    check_signing_key(services)
    renew_tree_head(services)
    adopt_stored(services)
    sweep(settings)
    attempts = ForkServer(ATTEMPT_MODULE)
    attempts.start()
    runtime = WorkerRuntime(services, attempts)
    if settings.nproc > 1:
        runtime.followers.start()
    with presence(services), audit_log_signer(services), scratch_sweeper(settings):
        stopped = take_jobs(runtime)
    attempts.close()  # and with it a preparation that is still running
    runtime.followers.close()
    sweep(settings)
    services.close()
    if not stopped:
        raise SystemExit(1)

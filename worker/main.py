"""The worker process: takes messages from RQ, says that it is alive, stops warm.

It never computes itself and never imports torch: each job runs in a fresh process (`worker.attempt`) that is
safe for CUDA, dies with this one, and gives its memory back when it ends.
"""

import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

from redis.exceptions import RedisError
from rq import Queue, SimpleWorker
from rq.job import Job as RqJob
from rq.serializers import JSONSerializer
from sqlalchemy.exc import SQLAlchemyError

from app import log_seen, logs
from app.bootstrap import Services
from app.clock import now
from app.db.receipts import encrypt_stored_salts
from app.db.tables import WorkerSeen
from app.settings import Settings
from app.startup import check_deployment_key, refuse
from app.vault import KeyProblem
from worker import jobs
from worker.messages import Message, NotOurs, open_queue
from worker.pipeline import log as certificate_log
from worker.pipeline.scratch import sweep
from worker.signing import check_known, load_signer, rotate

log = logs.get("worker")


class Presence:
    """Writes this worker's name and the time into SQL, so that `/readyz` knows someone is there."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._name = f"{socket.gethostname()}-{os.getpid()}"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="presence", daemon=True)

    def __enter__(self) -> "Presence":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        _tolerant(self._leave)

    def _beat(self) -> None:
        while not self._stop.is_set():
            _tolerant(self._say)
            self._stop.wait(self._services.settings.heartbeat_seconds)

    def _say(self) -> None:
        with self._services.database.writing() as session:
            session.merge(WorkerSeen(name=self._name, seen_at=now()))

    def _leave(self) -> None:
        with self._services.database.writing() as session:
            seen = session.get(WorkerSeen, self._name)
            if seen is not None:
                session.delete(seen)


def _tolerant(write: Callable[[], None]) -> None:
    try:
        write()
    except SQLAlchemyError as problem:
        log.warning("database away", problem=type(problem).__name__)


class Worker(SimpleWorker):
    """Takes only what a dispatcher sends.

    Knows whether it ends because it was asked to; RQ itself ends the same way after an error.
    """

    asked_to_stop = False

    @classmethod
    def of(cls, services: Services) -> "Worker":
        return cls(
            [open_queue(services.settings.queue_name, services.redis)],
            connection=services.redis,
            serializer=JSONSerializer,
            job_class=Message,
            worker_ttl=60,
            job_monitoring_interval=5,
        )

    def execute_job(self, job: RqJob, queue: Queue) -> None:
        try:
            assert isinstance(job, Message)
            job.check()
        except NotOurs as problem:
            log.error("message dropped", because=str(problem))
            queue.intermediate_queue.remove(job.id)
            self.connection.delete(job.key)
            return
        super().execute_job(job, queue)

    def request_stop(self, signum: int, frame: FrameType | None) -> None:
        self.asked_to_stop = True
        jobs.asked_to_stop()
        super().request_stop(signum, frame)  # type: ignore[no-untyped-call]

    def set_shutdown_requested_date(self) -> None:
        """Called in the signal handler while a job runs: raised there, an error would end the job."""
        with suppress(RedisError):
            super().set_shutdown_requested_date()  # type: ignore[no-untyped-call]


def rotate_signing_key(settings: Settings) -> None:
    """Let the signing key of the settings take over from the one in use."""
    services = Services(settings)
    try:
        with services.database.writing() as session:
            rotate(session, load_signer(settings), certificate_log.lock(session).size)
    except KeyProblem as problem:
        raise refuse(str(problem)) from None
    finally:
        services.close()


def check_signing_key(services: Services) -> None:
    """Exit rather than take jobs that could not be signed and logged; for a database that is away wait."""
    try:
        with services.database.reading() as session:
            check_known(session, services.settings)
            log_seen.check(session, services.settings)
    except (KeyProblem, log_seen.LogOlder) as problem:
        raise refuse(str(problem)) from None
    except SQLAlchemyError as problem:
        log.warning("database away, the signing key is checked later", problem=type(problem).__name__)


def encrypt_salts(services: Services) -> None:
    """Encrypt what an earlier version stored in the clear; if the database is away, at the next start."""
    try:
        if encrypted := encrypt_stored_salts(services.database, services.vault):
            log.info("stored salts encrypted", rows=encrypted)
    except SQLAlchemyError as problem:
        log.warning("database away, stored salts are looked at later", problem=type(problem).__name__)


def run(settings: Settings) -> None:
    services = Services(settings)
    check_deployment_key(services)
    check_signing_key(services)
    encrypt_salts(services)
    sweep(settings)
    jobs.use(services)
    worker = Worker.of(services)
    with Presence(services):
        try:
            worker.work(logging_level="WARNING", with_scheduler=False)
        except RedisError as problem:
            log.error("queue away", problem=type(problem).__name__)
    services.close()
    if not worker.asked_to_stop:  # whoever keeps us running starts us again; SQL knows what was under way
        raise SystemExit(1)

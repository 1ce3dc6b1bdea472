"""The worker process: takes messages from RQ, says that it is alive, stops warm.

It never computes itself and never imports torch: each job runs in a fresh process (`worker.attempt`) that is
safe for CUDA, dies with this one, and gives its memory back when it ends.
"""

import os
import socket
import threading
from collections.abc import Callable

from redis.exceptions import RedisError
from rq import SimpleWorker
from rq.serializers import JSONSerializer
from sqlalchemy.exc import OperationalError

from app import logs
from app.bootstrap import Services
from app.clock import now
from app.db.tables import WorkerSeen
from app.settings import Settings
from worker import jobs
from worker.pipeline.scratch import sweep

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
    except OperationalError as problem:
        log.warning("database away", problem=type(problem).__name__)


def run(settings: Settings) -> None:
    services = Services(settings)
    sweep(settings)
    jobs.use(services)
    with Presence(services):
        try:
            worker = SimpleWorker(
                [services.queue],
                connection=services.redis,
                serializer=JSONSerializer,
                worker_ttl=60,
                job_monitoring_interval=5,
            )
            worker.work(logging_level="WARNING", with_scheduler=False)
        except RedisError as problem:  # the supervisor starts us again; SQL knows what was under way
            log.error("queue away", problem=type(problem).__name__)
            raise SystemExit(1) from None
    services.close()

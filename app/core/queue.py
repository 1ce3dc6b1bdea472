"""The job queue: its RQ adapter, and the address of its Redis or Valkey server.

A message is JSON: the name of a function and two ids. SQL is the source of truth, so Redis may lose any
message.
"""

import hashlib
import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol
from urllib.parse import quote
from uuid import UUID

from redis import Redis
from redis.client import PubSub
from redis.exceptions import RedisError
from rq import Queue
from rq.exceptions import NoSuchJobError
from rq.job import Job as RqJob
from rq.job import JobStatus
from rq.serializers import JSONSerializer

from app.core.settings import Settings
from app.core.vault import write_private

RESULT_TTL = 60
_STOP_CHECK_SECONDS = 0.5
CONNECT_TIMEOUT = 5
SOCKET_TIMEOUT = 15  # after this a server counts as unavailable; RQ allows its own blocking reads longer
HEALTH_CHECK_SECONDS = 30
# The address of a Unix socket holds 104 bytes on macOS and 108 on Linux, including the final zero.
LONGEST_SOCKET_PATH = 100
# Not TMPDIR: every process must come to the same path, however it was started.
SHORT_ROOT = Path("/tmp")  # noqa: S108 - the folder made in it is checked to be ours


class Messages(Protocol):
    """The queue as the dispatcher sees it. It may lose messages, and deliver them twice."""

    def send(self, function: str, job_id: UUID, token: UUID) -> None:
        """Put a message about one attempt into the queue."""

    def contains(self, job_id: UUID, token: UUID) -> bool:
        """Return whether the attempt's message still waits for a worker."""


class RqMessages:
    """The queue of RQ, as `Messages`."""

    def __init__(self, queue: Queue) -> None:
        """Send to this queue."""
        self._queue = queue

    def send(self, function: str, job_id: UUID, token: UUID) -> None:
        """Put a message about one attempt into the queue."""
        self._queue.enqueue_call(
            function,
            args=(str(job_id), str(token)),
            job_id=message_id(job_id, token),
            timeout=-1,  # jobs have their own time limits, and RQ's cannot interrupt a long call into C
            result_ttl=RESULT_TTL,
            failure_ttl=RESULT_TTL,
        )

    def contains(self, job_id: UUID, token: UUID) -> bool:
        """Return whether the attempt's message still waits for a worker."""
        identifier = message_id(job_id, token)
        connection = self._queue.connection
        try:
            status = RqJob.fetch(identifier, connection=connection, serializer=JSONSerializer).get_status()
        except NoSuchJobError:
            return False
        return status == JobStatus.QUEUED and connection.lpos(self._queue.key, identifier) is not None


class WakeUp:
    """Tells every dispatcher that there is work, so that it need not wait for its next round.

    A lost call costs one pause between rounds and nothing else: the work itself is in SQL.
    """

    def __init__(self, connection: Redis, queue_name: str) -> None:
        """Use the channel that belongs to a queue."""
        self._connection, self._channel = connection, f"lethe:wake:{queue_name}"
        self._subscription: PubSub | None = None

    def call(self) -> None:
        """Wake all dispatchers. If Redis is unavailable, they find the work in their next round."""
        with suppress(RedisError):
            self._connection.publish(self._channel, "")

    def wait(self, seconds: float, *, stopped: Callable[[], bool]) -> None:
        """Wait until the next call, for `seconds` at most, or until `stopped` returns True.

        Calls from before the first wait are not seen. Raises `RedisError` if Redis is unavailable.
        """
        deadline = time.monotonic() + seconds
        try:
            if self._subscription is None:
                self._subscription = self._connection.pubsub(  # type: ignore[no-untyped-call]
                    ignore_subscribe_messages=True
                )
                self._subscription.subscribe(self._channel)
            while not stopped() and (left := deadline - time.monotonic()) > 0:
                if self._subscription.get_message(timeout=min(left, _STOP_CHECK_SECONDS)) is not None:
                    self._forget_calls()
                    return
        except RedisError:
            self.close()
            raise

    def _forget_calls(self) -> None:
        """Drop the calls that came together with the last one. One round serves them all."""
        assert self._subscription is not None
        while self._subscription.get_message(timeout=0) is not None:
            pass

    def close(self) -> None:
        """Unsubscribe."""
        if self._subscription is not None:
            with suppress(RedisError):
                self._subscription.close()
            self._subscription = None


def message_id(job_id: UUID, token: UUID) -> str:
    """Return the id of the message about one attempt."""
    return f"{job_id}_{token}"


def open_queue(name: str, connection: Redis) -> Queue:
    """Return the queue with this name. Its messages are JSON, so they cannot carry code."""
    return Queue(name, connection=connection, serializer=JSONSerializer)


def connect(url: str) -> Redis:
    """Return a client for the server at a URL. It connects on first use."""
    return Redis.from_url(
        url,
        socket_connect_timeout=CONNECT_TIMEOUT,
        socket_timeout=SOCKET_TIMEOUT,
        health_check_interval=HEALTH_CHECK_SECONDS,
    )


def redis_url(settings: Settings) -> str:
    """Return the URL of the configured server, or of the private server in the data folder."""
    if settings.redis_url:
        return settings.redis_url
    return f"unix://:{queue_password(settings)}@{quote(str(socket_path(settings)))}"


def socket_path(settings: Settings) -> Path:
    """Return the path of the private server's socket.

    The socket is in the data folder, or in a short folder below `/tmp` if that path is too long for a socket.
    """
    folder = settings.data_dir.resolve()
    path = folder / "redis" / "redis.sock"
    if len(os.fsencode(path)) <= LONGEST_SOCKET_PATH:
        return path
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    return SHORT_ROOT / f"lethe-{os.getuid()}-{digest}" / "redis.sock"


def queue_password(settings: Settings) -> str:
    """Return the private server's password, and create it on first use."""
    path = settings.data_dir / "keys" / "redis.password"
    if not path.exists():
        write_private(path, secrets.token_hex(32).encode() + b"\n")
    return path.read_text().strip()

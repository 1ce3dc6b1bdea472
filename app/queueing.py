"""The RQ queue: JSON on both ends, jobs by string name, ids only. Nothing authoritative lives in Redis."""

from typing import Protocol
from uuid import UUID

from redis import Redis
from rq import Queue
from rq.exceptions import NoSuchJobError
from rq.job import Job as RqJob
from rq.job import JobStatus
from rq.serializers import JSONSerializer

RESULT_TTL = 60
SOCKET_TIMEOUT = 15  # a server that hangs is as good as gone; RQ gives its own blocking reads more


class Messages(Protocol):
    """What the dispatcher asks of a queue. It may lose messages and deliver them twice."""

    def send(self, function: str, job_id: UUID, token: UUID) -> None: ...

    def holds(self, job_id: UUID, token: UUID) -> bool:
        """Whether the message is still there for a worker to take."""


class RqMessages:
    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def send(self, function: str, job_id: UUID, token: UUID) -> None:
        self._queue.enqueue_call(
            function,
            args=(str(job_id), str(token)),
            job_id=message_id(job_id, token),
            timeout=-1,  # time limits are the job's own: a timeout here cannot interrupt a long C call anyway
            result_ttl=RESULT_TTL,
            failure_ttl=RESULT_TTL,
        )

    def holds(self, job_id: UUID, token: UUID) -> bool:
        identifier = message_id(job_id, token)
        connection = self._queue.connection
        try:
            status = RqJob.fetch(identifier, connection=connection, serializer=JSONSerializer).get_status()
        except NoSuchJobError:
            return False
        return status == JobStatus.QUEUED and connection.lpos(self._queue.key, identifier) is not None


def connect(url: str) -> Redis:
    return Redis.from_url(
        url, socket_connect_timeout=5, socket_timeout=SOCKET_TIMEOUT, health_check_interval=30
    )


def open_queue(name: str, connection: Redis) -> Queue:
    return Queue(name, connection=connection, serializer=JSONSerializer)


def message_id(job_id: UUID, token: UUID) -> str:
    return f"{job_id}_{token}"

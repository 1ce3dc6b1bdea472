"""The RQ queue: JSON on both ends, jobs by string name, ids only. Nothing authoritative lives in Redis."""

from uuid import UUID

from redis import Redis
from rq import Queue
from rq.exceptions import NoSuchJobError
from rq.job import Job as RqJob
from rq.job import JobStatus
from rq.serializers import JSONSerializer

RESULT_TTL = 60


def connect(url: str) -> Redis:
    return Redis.from_url(url, socket_connect_timeout=5, health_check_interval=30)


def open_queue(name: str, connection: Redis) -> Queue:
    return Queue(name, connection=connection, serializer=JSONSerializer)


def message_id(job_id: UUID, token: UUID) -> str:
    return f"{job_id}_{token}"


def send(queue: Queue, function: str, job_id: UUID, token: UUID) -> None:
    queue.enqueue_call(
        function,
        args=(str(job_id), str(token)),
        job_id=message_id(job_id, token),
        timeout=-1,  # time limits are the job's own: a timeout here cannot interrupt a long C call anyway
        result_ttl=RESULT_TTL,
        failure_ttl=RESULT_TTL,
    )


def is_waiting(queue: Queue, job_id: UUID, token: UUID) -> bool:
    """Whether Redis still holds this message for a worker to take."""
    identifier = message_id(job_id, token)
    try:
        status = RqJob.fetch(identifier, connection=queue.connection, serializer=JSONSerializer).get_status()
    except NoSuchJobError:
        return False
    return status == JobStatus.QUEUED and identifier in queue.get_job_ids()

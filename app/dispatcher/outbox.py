"""The way of a job into the queue: choosing it, sending its message, and announcing a lost message again."""

from collections import Counter
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import ColumnElement, and_, case, delete, exists, func, or_, select
from sqlalchemy.orm import Session

from app.core import logging
from app.core.queue import Messages
from app.db import transitions
from app.db.states import JobState
from app.db.tables import Job, Model, OutboxMessage, WorkerSeen
from app.dispatcher import spans
from app.services import Services

log = logging.get_logger("dispatcher")
MESSAGES_PER_ROUND = 1000
QUEUED_JOBS, QUEUED_PER_WORKER = 8, 2


def queue_waiting_jobs(services: Services, now: datetime) -> None:
    """Begin an attempt at waiting jobs that are due, as many as the queue has room for.

    The queue is short, because nothing can overtake what is in it. Jobs that wait are in SQL, where tenants
    take turns (`_choose_jobs`).

    No job waits longer than the longest backoff. One that appears to was written before a clock jumped back,
    so it counts as due.
    """
    too_late = now + transitions.LONGEST_BACKOFF
    due = and_(Job.state == JobState.WAITING, or_(Job.run_after <= now, Job.run_after > too_late))
    with services.database.reading() as session:
        if session.scalar(select(Job.id).where(due).limit(1)) is None:
            return
        chosen = _choose_jobs(session, due, _room(session, services, now))
    if not chosen:
        return
    place = case({job_id: number for number, job_id in enumerate(chosen)}, value=Job.id)
    transitions.change_jobs(
        services.database,
        select(Job).where(due, Job.id.in_(chosen)).order_by(place),
        lambda session, job: transitions.dispatch(session, job, now),
    )


def _room(session: Session, services: Services, now: datetime) -> int:
    """Return how many more jobs the queue should hold, so that no worker runs out of work."""
    horizon = now - timedelta(seconds=services.settings.dead_after)
    workers = session.scalar(select(func.count()).where(WorkerSeen.seen_at > horizon)) or 0
    queued = session.scalar(select(func.count()).where(Job.state == JobState.QUEUED)) or 0
    return max(0, QUEUED_JOBS + QUEUED_PER_WORKER * workers - queued)


def _choose_jobs(session: Session, due: ColumnElement[bool], room: int) -> list[UUID]:
    """Return the jobs to queue next, in order.

    The tenant with the fewest jobs in the queue and at work comes first, so that each gets the same number
    of workers if it can use them. Among equals, and within a tenant, the earliest deadline comes first.
    """
    busy = select(Model.tenant_id).join(Job, Job.model_id == Model.id)
    active = Counter(session.scalars(busy.where(Job.state.in_((JobState.QUEUED, JobState.RUNNING)))))
    deadline = func.coalesce(Job.due_at, Job.created_at)
    place = func.row_number().over(partition_by=Model.tenant_id, order_by=(deadline, Job.id))
    ranked = (
        select(Job.id, Model.tenant_id, deadline.label("deadline"), place.label("place"))
        .join(Model, Model.id == Job.model_id)
        .where(due)
        .subquery()
    )
    rows = session.execute(select(ranked).where(ranked.c.place <= room)).all()
    turns = sorted(rows, key=lambda row: (active[row.tenant_id] + row.place, row.deadline, row.id))
    return [row.id for row in turns[:room]]


def send_messages(services: Services, messages: Messages) -> None:
    """Send the messages in the outbox to the queue, each at least once.

    A message is deleted only after the queue has accepted it. If the process dies in between, it is sent
    again, and a worker claims it at most once.
    """
    with services.database.reading() as session:
        unsent = session.scalars(
            select(OutboxMessage).order_by(OutboxMessage.id).limit(MESSAGES_PER_ROUND)
        ).all()
    for message in unsent:
        with spans.dispatch(services, message.job_id):
            messages.send(message.function, message.job_id, message.token)
        with services.database.writing() as session:
            session.execute(delete(OutboxMessage).where(OutboxMessage.id == message.id))


def announce_lost_messages(services: Services, messages: Messages, now: datetime) -> None:
    """Announce jobs again that were queued a while ago and are in neither the outbox nor the queue."""
    horizon = now - timedelta(seconds=services.settings.requeue_after_seconds)
    late = select(Job).where(
        Job.state == JobState.QUEUED,
        or_(Job.queued_at < horizon, Job.queued_at > now),  # in the future: a clock has jumped back
        ~exists().where(OutboxMessage.job_id == Job.id),
    )
    with services.database.reading() as session:
        sent = [(job.id, job.token) for job in session.scalars(late) if job.token]

    def announce_again(session: Session, job: Job) -> None:
        log.warning("the queue lost a message; sending it again", job=str(job.id), attempt=job.attempt)
        job.queued_at = now
        transitions.announce(session, job)

    for job_id, token in sent:
        if not messages.contains(job_id, token):
            lost = late.where(Job.id == job_id, Job.token == token)
            transitions.change_jobs(services.database, lost, announce_again)

"""The way of a job into the queue: queueing it, sending its message, and announcing a lost message again."""

from datetime import datetime, timedelta

from sqlalchemy import delete, exists, or_, select
from sqlalchemy.orm import Session

from app.core import logging
from app.core.queue import Messages
from app.db import transitions
from app.db.states import JobState
from app.db.tables import Job, OutboxMessage
from app.dispatcher import spans
from app.services import Services

log = logging.get_logger("dispatcher")
MESSAGES_PER_ROUND = 1000


def queue_waiting_jobs(services: Services, now: datetime) -> None:
    """Begin an attempt at every waiting job that is due.

    No job waits longer than the longest backoff. One that appears to was written before a clock jumped back,
    so it counts as due.
    """
    too_late = now + transitions.LONGEST_BACKOFF
    due = select(Job).where(
        Job.state == JobState.WAITING, or_(Job.run_after <= now, Job.run_after > too_late)
    )
    transitions.change_jobs(
        services.database, due, lambda session, job: transitions.dispatch(session, job, now)
    )


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

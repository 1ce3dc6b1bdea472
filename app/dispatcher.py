"""Seals batches, feeds the queue, notices dead attempts. Many may run; a lease lets one act at a time.

Nothing here is remembered between rounds: each round reads SQL, and whatever Redis lost is sent again.
Two dispatchers that both believe to hold the lease do no harm either: every change is conditional in SQL.
"""

import signal
import threading
from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from redis.exceptions import RedisError
from sqlalchemy import delete, or_, select, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from app import logs, queueing
from app.bootstrap import Services
from app.clock import new_id, now
from app.db import transitions
from app.db.manifest import Manifest, Policy
from app.db.states import JobState, ModelState
from app.db.tables import IdempotencyKey, Job, Lease, Model, OutboxMessage
from app.db.upsert import insert_if_absent
from app.settings import Settings

log = logs.get("dispatcher")
LEASE = "dispatcher"
DEADLINE_MARGIN = timedelta(days=7)  # a batch is sealed this long before its earliest deadline


class Dispatcher:
    def __init__(self, services: Services) -> None:
        self.services = services
        self.settings = services.settings
        self.holder = new_id()

    def round(self) -> bool:
        """Do everything that is due; False when another dispatcher holds the lease."""
        if not self._hold_lease(now()):
            return False
        self.seal_due()
        self.give_up_dead_attempts()
        self.queue_waiting_jobs()
        self.announce_lost_messages()
        self.send_outbox()
        self.forget_expired()
        return True

    def seal_due(self) -> None:
        with self.services.database.writing() as session:
            for model in session.scalars(select(Model).where(Model.state == ModelState.READY)).all():
                because = _due(session, model, now())
                batch = transitions.seal(session, model, because=because, now=now()) if because else None
                if batch is not None:
                    log.info("sealed", batch=str(batch.id), because=because, subjects=batch.subjects)

    def give_up_dead_attempts(self) -> None:
        moment = now()
        horizon = moment - timedelta(seconds=self.settings.dead_after)
        with self.services.database.writing() as session:
            for job in _locked(
                session, select(Job.id).where(Job.state == JobState.RUNNING, Job.heartbeat_at < horizon)
            ):
                log.warning("attempt went silent", job=str(job.id), attempt=job.attempt)
                transitions.attempt_failed(
                    session,
                    job,
                    error="the worker went silent",
                    now=moment,
                    max_attempts=self.settings.max_attempts,
                    backoff=self.settings.retry_backoff_seconds,
                )

    def queue_waiting_jobs(self) -> None:
        moment = now()
        with self.services.database.writing() as session:
            for job in _locked(
                session, select(Job.id).where(Job.state == JobState.WAITING, Job.run_after <= moment)
            ):
                transitions.dispatch(session, job, moment)

    def announce_lost_messages(self) -> None:
        """What was queued a while ago and is neither in the outbox nor in Redis is announced again."""
        horizon = now() - timedelta(seconds=self.settings.requeue_after_seconds)
        with self.services.database.reading() as session:
            late = session.scalars(
                select(Job).where(
                    Job.state == JobState.QUEUED,
                    Job.queued_at < horizon,
                    Job.id.not_in(select(OutboxMessage.job_id)),
                )
            ).all()
        lost = [j for j in late if j.token and not queueing.is_waiting(self.services.queue, j.id, j.token)]
        if not lost:
            return
        with self.services.database.writing() as session:
            for job in _locked(session, select(Job.id).where(Job.id.in_([j.id for j in lost]))):
                if job.state == JobState.QUEUED:
                    log.warning("message lost, sent again", job=str(job.id), attempt=job.attempt)
                    job.queued_at = now()
                    transitions.announce(session, job)

    def send_outbox(self) -> None:
        """At least once: a message is forgotten only after Redis took it; a worker claims it at most once."""
        with self.services.database.reading() as session:
            messages = session.scalars(select(OutboxMessage).order_by(OutboxMessage.id).limit(1000)).all()
        for message in messages:
            queueing.send(self.services.queue, message.function, message.job_id, message.token)
            with self.services.database.writing() as session:
                session.execute(delete(OutboxMessage).where(OutboxMessage.id == message.id))

    def forget_expired(self) -> None:
        with self.services.database.writing() as session:
            session.execute(delete(IdempotencyKey).where(IdempotencyKey.expires_at < now()))

    def release_lease(self) -> None:
        with self.services.database.writing() as session:
            session.execute(delete(Lease).where(Lease.name == LEASE, Lease.holder == self.holder))

    def _hold_lease(self, moment: datetime) -> bool:
        expires = moment + timedelta(seconds=self.settings.lease_seconds)
        with self.services.database.writing() as session:
            insert_if_absent(session, Lease, name=LEASE, holder=self.holder, expires_at=expires)
            held = session.execute(
                update(Lease)
                .where(Lease.name == LEASE, or_(Lease.holder == self.holder, Lease.expires_at < moment))
                .values(holder=self.holder, expires_at=expires)
                .returning(Lease.holder)
            ).scalar()
        return held == self.holder


def _locked(session: Session, ids: "select[tuple[UUID]]") -> Sequence[Job]:  # type: ignore[valid-type]
    """The jobs, each re-read under a row lock so that a decision is made on what is true now."""
    return session.scalars(select(Job).where(Job.id.in_(ids)).with_for_update()).all()


def _due(session: Session, model: Model, moment: datetime) -> str | None:
    """Why the waiting requests of this model should be sealed now, or None."""
    waiting, oldest, deadline = transitions.waiting_subjects(session, model.id)
    if not waiting or oldest is None or deadline is None:
        return None
    policy: Policy = Manifest.model_validate(model.manifest).policy
    if model.flush_requested:
        return "flush"
    if waiting >= policy.batch_subjects:
        return "count"
    if moment - oldest >= timedelta(seconds=policy.batch_age_seconds):
        return "age"
    if deadline - moment <= DEADLINE_MARGIN:
        return "deadline"
    return None


def run(settings: Settings) -> None:
    """Rounds until SIGTERM or SIGINT; a database or Redis that is away for a while is waited for."""
    services = Services(settings)
    dispatcher, stop = Dispatcher(services), threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    log.info("dispatcher started")
    while not stop.is_set():
        try:
            dispatcher.round()
        except (OperationalError, RedisError) as problem:
            log.warning("waiting for a server", problem=type(problem).__name__)
        stop.wait(settings.dispatch_interval_seconds)
    dispatcher.release_lease()
    services.close()

"""Seals batches, feeds the queue, notices dead attempts. Many may run; a lease lets one act at a time.

Whatever must not be forgotten is in SQL: each round reads it, and whatever Redis lost is sent again. Two
dispatchers that both believe to hold the lease do no harm either: every change is conditional in SQL.
Wall clocks may be wrong and jump, back and forth; that delays work, and neither stops nor repeats it.
"""

import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from uuid import UUID

from pydantic import ValidationError
from redis.exceptions import RedisError
from sqlalchemy import Select, delete, exists, or_, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from app import logs, orphans, traced
from app.bootstrap import Services
from app.clock import new_id, now
from app.db import receipts, transitions
from app.db.manifest import Manifest
from app.db.policy import Policy
from app.db.states import OPEN_BATCH, JobState, ModelState, TaskState
from app.db.tables import Batch, IdempotencyKey, Job, Lease, Model, OutboxMessage, Task, WorkerSeen
from app.db.upsert import insert_if_absent
from app.queueing import Messages, RqMessages
from app.settings import Settings
from app.silence import Beat, Silence
from app.startup import refuse
from app.storage import StorageError
from app.webhooks import delivery

log = logs.get("dispatcher")
LEASE = "dispatcher"
DEADLINE_MARGIN = timedelta(days=7)  # a batch is sealed this long before its earliest deadline
WORKER_FORGOTTEN = timedelta(days=1)
SWEEP_SECONDS = 60.0


class Dispatcher:
    def __init__(
        self,
        services: Services,
        *,
        messages: Messages | None = None,
        clock: Callable[[], datetime] = now,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self.services = services
        self.settings = services.settings
        self.holder = new_id()
        self._messages = messages or RqMessages(services.queue)
        self._now = clock
        self._silence = Silence(steady)
        self._steady, self._next_sweep = steady, steady() + SWEEP_SECONDS

    def round(self) -> bool:
        """Do everything that is due; False when another dispatcher holds the lease."""
        if not self._hold_lease(self._now()):
            return False
        self.seal_due()
        self.give_up_dead_attempts()
        self.queue_waiting_jobs()
        self.announce_lost_messages()
        self.send_outbox()
        self.forget_expired()
        self.sweep_orphans()
        return True

    def sweep_orphans(self) -> None:
        """Now and then: it lists files, which costs more than a query."""
        if self._steady() < self._next_sweep:
            return
        self._next_sweep = self._steady() + SWEEP_SECONDS
        try:
            swept = orphans.sweep(self.services)
        except (OSError, StorageError) as problem:  # sealing and sending need no storage: they go on
            log.warning("not swept", problem=type(problem).__name__)
            return
        if swept:
            log.info("swept", files=swept)

    def seal_due(self) -> None:
        """One transaction per model; a look that finds nobody waiting is one query."""
        with self.services.database.reading() as session:
            due = [m.id for m in session.scalars(_waiting_models()) if _due(session, m, self._now())]
        for model_id in due:
            with self.services.database.writing() as session:
                self._seal(session, model_id)

    def _seal(self, session: Session, model_id: UUID) -> None:
        # Locked without its key: the intake, which refers to the model, need not wait.
        model = session.scalar(_waiting_models(model_id).with_for_update(key_share=True))
        because = _due(session, model, self._now()) if model else None
        if model is None or because is None:
            return
        batch = traced.seal(self.services.tracer, session, model, because=because, now=self._now())
        if batch is not None:
            log.info("sealed", batch=str(batch.id), because=because, subjects=batch.subjects)

    def give_up_dead_attempts(self) -> None:
        with self.services.database.reading() as session:
            running = session.execute(
                select(Job.id, Job.token, Job.heartbeat_at).where(Job.state == JobState.RUNNING)
            ).all()
        beats = [Beat(id_, token, at) for id_, token, at in running if token and at]
        for beat in self._silence.longer_than(self.settings.dead_after, beats):
            self._change(
                select(Job).where(
                    Job.id == beat.job_id,
                    Job.token == beat.token,
                    Job.state == JobState.RUNNING,
                    Job.heartbeat_at == beat.at,
                ),
                self._give_up,
            )

    def _give_up(self, session: Session, job: Job) -> None:
        log.warning("attempt went silent", job=str(job.id), attempt=job.attempt)
        transitions.attempt_failed(
            session,
            job,
            error="the worker went silent",
            now=self._now(),
            max_attempts=self.settings.max_attempts,
            backoff=self.settings.retry_backoff_seconds,
        )

    def queue_waiting_jobs(self) -> None:
        """What is due; also what waits longer than any backoff, for then a clock has jumped."""
        moment = self._now()
        too_far = moment + transitions.LONGEST_BACKOFF
        due = select(Job).where(
            Job.state == JobState.WAITING, or_(Job.run_after <= moment, Job.run_after > too_far)
        )
        self._change(due, lambda session, job: transitions.dispatch(session, job, moment))

    def announce_lost_messages(self) -> None:
        """What was queued a while ago and is neither in the outbox nor in Redis is announced again."""
        moment = self._now()
        horizon = moment - timedelta(seconds=self.settings.requeue_after_seconds)
        late = select(Job).where(
            Job.state == JobState.QUEUED,
            or_(Job.queued_at < horizon, Job.queued_at > moment),  # after now: a clock has jumped
            ~exists().where(OutboxMessage.job_id == Job.id),
        )
        with self.services.database.reading() as session:
            sent = [(job.id, job.token) for job in session.scalars(late) if job.token]
        for job_id, token in sent:
            if not self._messages.holds(job_id, token):
                self._change(late.where(Job.id == job_id, Job.token == token), self._announce_again)

    def _announce_again(self, session: Session, job: Job) -> None:
        log.warning("message lost, sent again", job=str(job.id), attempt=job.attempt)
        job.queued_at = self._now()
        transitions.announce(session, job)

    def send_outbox(self) -> None:
        """At least once: a message is forgotten only after Redis took it; a worker claims it at most once."""
        with self.services.database.reading() as session:
            messages = session.scalars(select(OutboxMessage).order_by(OutboxMessage.id).limit(1000)).all()
        for message in messages:
            with traced.dispatch(self.services, message.job_id):
                self._messages.send(message.function, message.job_id, message.token)
            with self.services.database.writing() as session:
                session.execute(delete(OutboxMessage).where(OutboxMessage.id == message.id))

    def forget_expired(self) -> None:
        with self.services.database.writing() as session:
            session.execute(delete(IdempotencyKey).where(IdempotencyKey.expires_at < self._now()))
            session.execute(delete(WorkerSeen).where(WorkerSeen.seen_at < self._now() - WORKER_FORGOTTEN))

        self._destroy_old_salts()

    def _destroy_old_salts(self) -> None:
        """Of receipts that nobody acknowledged in time."""
        over = select(Task.id).where(Task.receipts_until < self._now())
        with self.services.database.reading() as session:
            if session.scalar(over.limit(1)) is None:
                return
        with self.services.database.writing() as session:
            destroyed = receipts.destroy_salts(session, over)
        emptied = self.services.database.forget_deleted_bytes()
        log.info("salts destroyed", tasks=destroyed, write_ahead_log_emptied=emptied)

    def release_lease(self) -> None:
        with self.services.database.writing() as session:
            session.execute(delete(Lease).where(Lease.name == LEASE, Lease.holder == self.holder))

    def _hold_lease(self, moment: datetime) -> bool:
        length = timedelta(seconds=self.settings.lease_seconds)
        expires = moment + length
        # A lease that ends later than anyone could have taken it was written before a clock jumped back.
        over = or_(Lease.expires_at < moment, Lease.expires_at > expires + length)
        with self.services.database.writing() as session:
            insert_if_absent(session, Lease, name=LEASE, holder=self.holder, expires_at=expires)
            held = session.execute(
                update(Lease)
                .where(Lease.name == LEASE, or_(Lease.holder == self.holder, over))
                .values(holder=self.holder, expires_at=expires)
                .returning(Lease.holder)
            ).scalar()
        return held == self.holder

    def _change(self, wanted: Select[Job], change: Callable[[Session, Job], None]) -> None:
        """Change every wanted job under its row's lock; a look that finds none writes nothing.

        The conditions are on the locked row itself, so PostgreSQL checks them again on what is true once the
        lock is held. A row that somebody else holds is under way: the next round looks at it.
        """
        with self.services.database.reading() as session:
            if session.scalar(wanted.limit(1)) is None:
                return
        with self.services.database.writing() as session:
            for job in session.scalars(wanted.with_for_update(of=Job, skip_locked=True)).all():
                change(session, job)


def _waiting_models(model_id: UUID | None = None) -> Select[Model]:
    """Ready models with requests that wait for a batch, and no batch under way."""
    waiting = exists().where(
        Task.model_id == Model.id, Task.state == TaskState.RECEIVED, Task.batch_id.is_(None)
    )
    busy = exists().where(Batch.model_id == Model.id, Batch.state.in_(OPEN_BATCH))
    models = select(Model).where(Model.state == ModelState.READY, waiting, ~busy)
    return models if model_id is None else models.where(Model.id == model_id)


def _due(session: Session, model: Model, moment: datetime) -> str | None:
    """Why the waiting requests of this model should be sealed now, or None."""
    most, oldest, deadline = transitions.waiting_requests(session, model.id)
    if not most or oldest is None or deadline is None:
        return None
    try:
        policy: Policy = Manifest.model_validate(model.manifest).policy
    except ValidationError:  # one model that nobody can read must not keep the others waiting
        log.error("manifest not understood", model=str(model.id))
        return None
    if model.flush_requested:
        return "flush"
    reason = _enough_people(session, model, policy, most, old_enough=_is_old(policy, oldest, moment))
    if reason is None and deadline - moment <= DEADLINE_MARGIN:  # however few they are
        return "deadline"
    return reason


def _is_old(policy: Policy, oldest: datetime, moment: datetime) -> bool:
    return moment - oldest >= timedelta(seconds=policy.batch_age_seconds)


def _enough_people(
    session: Session, model: Model, policy: Policy, most: int, *, old_enough: bool
) -> str | None:
    """Return `count` or `age` if enough people wait for a batch, else None.

    Counting reads one row per person, so it is done only where the count can change the answer.
    """
    enough = policy.smallest_batch if old_enough else policy.batch_subjects
    people = transitions.waiting_subjects(session, model.id) if most >= enough else 0
    if people >= policy.batch_subjects:
        return "count"
    return "age" if old_enough and people >= policy.smallest_batch else None


def run(settings: Settings) -> None:
    """Rounds until SIGTERM or SIGINT; a database or Redis that is away for a while is waited for."""
    services = Services(settings)
    dispatcher, stop = Dispatcher(services), threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    # Beside the rounds: a receiver that is slow to answer must not hold up the sealing.
    arguments = (_courier(services), stop, settings.dispatch_interval_seconds)
    courier = threading.Thread(target=delivery.run, args=arguments, name="webhooks", daemon=True)
    courier.start()
    log.info("dispatcher started")
    while not stop.is_set():
        try:
            dispatcher.round()
        except (SQLAlchemyError, RedisError) as problem:
            log.warning("waiting for a server", problem=type(problem).__name__)
        stop.wait(settings.dispatch_interval_seconds)
    with suppress(SQLAlchemyError):  # else it runs out by itself
        dispatcher.release_lease()
    courier.join()
    services.close()


def _courier(services: Services) -> delivery.Courier:
    """Made before anything starts: without it the dispatcher would go on and tell nobody anything."""
    try:
        return delivery.Courier(services)
    except OSError:
        raise refuse("LETHE_WEBHOOK_CA_FILE names no readable file of certificates") from None

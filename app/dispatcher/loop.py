"""The dispatcher: rounds of everything that is due, by one dispatcher at a time.

Any number of dispatchers may run, and a lease lets one of them act. Everything that must not be forgotten is
in SQL. Each round reads it again and resends what Redis has lost. Two dispatchers that both believe they hold
the lease do no harm, because every change is conditional in SQL. Wall clocks may be wrong and may jump back
and forth: that delays work, but neither stops nor repeats it, and nothing is deleted for good because of it.
"""

import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta

from redis.exceptions import RedisError
from sqlalchemy import delete, or_, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from app.core import logging
from app.core.clock import new_id, now
from app.core.queue import Messages, RqMessages
from app.core.settings import Settings, SettingsError
from app.core.storage import StorageError
from app.core.vault import KeyProblem
from app.db import receipts
from app.db.session import insert_if_absent
from app.db.tables import IdempotencyKey, Lease, Task, WorkerSeen
from app.dispatcher import (
    callbacks,
    key_destruction,
    liveness,
    orphan_sweep,
    outbox,
    sealing,
    webhook_delivery,
)
from app.dispatcher.expiry_clock import ExpiryClock, database_time
from app.dispatcher.retention import RetentionSweep
from app.services import Services
from app.startup import refuse

log = logging.get_logger("dispatcher")
LEASE = "dispatcher"
WORKER_FORGOTTEN = timedelta(days=1)
SWEEP_SECONDS = 60.0
KEY_CHECK_SECONDS = 5.0


class Dispatcher:
    """One dispatcher, which competes with others for the lease."""

    def __init__(
        self,
        services: Services,
        *,
        messages: Messages | None = None,
        clock: Callable[[], datetime] = now,
        steady: Callable[[], float] = time.monotonic,
        database_clock: Callable[[Session], datetime] = database_time,
    ) -> None:
        """Prepare to work. Tests pass their own queue and clocks; `steady` returns monotonic seconds."""
        self.services = services
        self.settings = services.settings
        self.holder = new_id()
        self._messages = messages or RqMessages(services.queue)
        self._now = clock
        self._expiry_clock = ExpiryClock(services.database, clock, steady, database_clock)
        self._heartbeats = liveness.HeartbeatMonitor(steady)
        self._steady, self._next_sweep = steady, steady() + SWEEP_SECONDS
        self._retention = RetentionSweep(services.database, steady)
        self._next_key_check = steady()

    def round(self) -> bool:
        """Do everything that is due. Return False if another dispatcher holds the lease."""
        if not self._take_lease():
            return False
        self.seal_due()
        self.give_up_dead_attempts()
        self.queue_waiting_jobs()
        self.announce_lost_messages()
        self.send_outbox()
        self.forget_expired()
        self.destroy_keys()
        self.sweep_orphans()
        return True

    def seal_due(self) -> None:
        """Start the batches whose retry waits for its turn, then seal those that are due."""
        sealing.start_waiting_retries(self.services, self._now())
        sealing.seal_due_batches(self.services, self._now())

    def give_up_dead_attempts(self) -> None:
        """Give up attempts whose worker has stopped sending heartbeats."""
        liveness.give_up_silent_attempts(self.services, self._heartbeats, self._now())

    def queue_waiting_jobs(self) -> None:
        """Begin attempts at the jobs that are due."""
        outbox.queue_waiting_jobs(self.services, self._now())

    def announce_lost_messages(self) -> None:
        """Announce jobs again whose message the queue has lost."""
        outbox.announce_lost_messages(self.services, self._messages, self._now())

    def send_outbox(self) -> None:
        """Send the messages in the outbox."""
        outbox.send_messages(self.services, self._messages)

    def destroy_keys(self) -> None:
        """Destroy data keys that protected something which is deleted. Look for them every few seconds."""
        if self._steady() < self._next_key_check:
            return
        self._next_key_check = self._steady() + KEY_CHECK_SECONDS
        key_destruction.destroy_dirty_keys(self.services, self._now())

    def sweep_orphans(self) -> None:
        """Delete orphaned files, once a minute, because listing files costs more than a query."""
        if self._steady() < self._next_sweep:
            return
        self._next_sweep = self._steady() + SWEEP_SECONDS
        try:
            deleted = orphan_sweep.sweep(self.services)
        except (OSError, StorageError) as problem:  # sealing and sending do not need the storage
            log.warning("could not sweep orphaned files", problem=type(problem).__name__)
            return
        except KeyProblem as problem:
            log.error("could not sweep orphaned files", problem=str(problem))
            return
        if deleted:
            log.info("deleted orphaned files", files=deleted)

    def forget_expired(self) -> None:
        """Delete what has expired: idempotency keys, workers, salts of receipts, evidence and reports."""
        moment = self._expiry_clock.read()
        with self.services.database.writing() as session:
            session.execute(delete(IdempotencyKey).where(IdempotencyKey.expires_at < moment))
            session.execute(delete(WorkerSeen).where(WorkerSeen.seen_at < self._now() - WORKER_FORGOTTEN))
        self._destroy_expired_salts(moment)
        self._retention.step(moment)

    def _destroy_expired_salts(self, moment: datetime) -> None:
        expired = select(Task.id).where(Task.receipts_until < moment)
        with self.services.database.reading() as session:
            if session.scalar(expired.limit(1)) is None:
                return
        with self.services.database.writing() as session:
            destroyed = receipts.destroy_salts(session, expired)
        emptied = self.services.database.forget_deleted_bytes()
        log.info("destroyed the salts of expired receipts", tasks=destroyed, write_ahead_log_emptied=emptied)

    def release_lease(self) -> None:
        """Give the lease back, so that another dispatcher can act at once."""
        with self.services.database.writing() as session:
            session.execute(delete(Lease).where(Lease.name == LEASE, Lease.holder == self.holder))

    def _take_lease(self) -> bool:
        """Take or renew the lease. Return whether this dispatcher holds it now."""
        moment, length = self._now(), timedelta(seconds=self.settings.lease_seconds)
        expires = moment + length
        # A lease that ends later than anyone can have taken it was written before a clock jumped back.
        free = or_(Lease.expires_at < moment, Lease.expires_at > expires + length)
        with self.services.database.writing() as session:
            insert_if_absent(session, Lease, name=LEASE, holder=self.holder, expires_at=expires)
            holder = session.execute(
                update(Lease)
                .where(Lease.name == LEASE, or_(Lease.holder == self.holder, free))
                .values(holder=self.holder, expires_at=expires)
                .returning(Lease.holder)
            ).scalar()
        return holder == self.holder


def run(settings: Settings) -> None:
    """Run rounds until SIGTERM or SIGINT. If the database or Redis is unavailable, wait until it is back."""
    services = Services(settings)
    dispatcher, stop = Dispatcher(services), threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    # In a thread of its own, so that a slow webhook receiver cannot delay the sealing of batches.
    arguments = (_courier(services), stop, settings.dispatch_interval_seconds)
    courier = threading.Thread(target=webhook_delivery.run, args=arguments, name="webhooks", daemon=True)
    courier.start()
    reporter = threading.Thread(
        target=callbacks.run,
        args=(_callback_courier(services), stop, settings.dispatch_interval_seconds),
        name="callbacks",
        daemon=True,
    )
    reporter.start()
    log.info("dispatcher started")
    outage = logging.OutageLog(log, "database or queue")
    while not stop.is_set():
        try:
            dispatcher.round()
            outage.over()
        except (SQLAlchemyError, RedisError) as problem:
            outage.failed(problem)
        _pause(services, stop)
    with suppress(SQLAlchemyError):  # if this fails, the lease runs out by itself
        dispatcher.release_lease()
    courier.join()
    reporter.join()
    services.close()


def _pause(services: Services, stop: threading.Event) -> None:
    """Wait for the next round: until someone calls, or the interval has passed."""
    seconds = services.settings.dispatch_interval_seconds
    try:
        services.wake_up.wait(seconds, stopped=stop.is_set)
    except RedisError:
        stop.wait(seconds)


def _callback_courier(services: Services) -> callbacks.CallbackCourier:
    try:
        return callbacks.CallbackCourier(services)
    except SettingsError as problem:
        raise refuse(str(problem)) from None


def _courier(services: Services) -> webhook_delivery.Courier:
    """Create the courier before anything starts: a dispatcher that cannot send webhooks must not run."""
    try:
        return webhook_delivery.Courier(services)
    except OSError:
        raise refuse(
            "LETHE_WEBHOOK_CA_FILE: this is not a readable file of certificates; name a PEM file, or unset it"
        ) from None

"""Delivery of webhooks: claiming due deliveries, sending them, and scheduling retries.

Any number of couriers may run at the same time, because a delivery is claimed before it is sent. A message is
delivered at least once: if a courier dies between sending and recording it, another one sends it again under
the same message id. Messages arrive in no particular order.
"""

import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol
from uuid import UUID

from sqlalchemy.exc import SQLAlchemyError

from app.core import logging
from app.core.clock import now
from app.core.vault import KeyProblem
from app.core.webhooks import targets
from app.core.webhooks.sender import Answer, Sender
from app.core.webhooks.signature import signed_headers
from app.db import transitions, webhook_store
from app.db.webhooks import PING, DisabledReason, MessageFormat, WebhookEndpoint, WebhookEvent
from app.dispatcher import webhook_events
from app.services import Services

log = logging.get_logger("webhooks")
SENDERS = 32
PER_ENDPOINT = 4
PER_TENANT = 8  # so that the hanging receivers of one tenant do not occupy every sender
LEASE = timedelta(minutes=2)  # longer than any request can take, including the name lookup
KEPT = timedelta(days=30)
CLEANUP_SECONDS = 60.0
GONE = 410

# The waits between the attempts at a delivery, about a day in total. After the last one it is dead.
WAITS = (
    timedelta(seconds=5),
    timedelta(seconds=30),
    timedelta(minutes=2),
    timedelta(minutes=10),
    timedelta(minutes=30),
    timedelta(hours=1),
    timedelta(hours=2),
    timedelta(hours=4),
    timedelta(hours=6),
    timedelta(hours=10),
)
SPREAD = 0.2  # each wait is up to this fraction longer or shorter, so that retries do not come all at once
LONGEST_WAIT = max(WAITS) * (1 + SPREAD)
LONGEST_RETRY_AFTER = timedelta(hours=1)  # a receiver cannot postpone its messages any further


def wait_after(tries: int, chance: float) -> timedelta | None:
    """Return how long to wait after this many tries, or None after the last one.

    `chance` in [0, 1) chooses a point within the spread.

    >>> wait_after(1, 0.5), wait_after(11, 0.5)
    (datetime.timedelta(seconds=5), None)
    """
    if tries > len(WAITS):
        return None
    return WAITS[tries - 1] * (1 - SPREAD + 2 * SPREAD * chance)


def random_chance() -> float:
    """Return a random number in [0, 1)."""
    return secrets.randbelow(1 << 20) / (1 << 20)


class MessageSender(Protocol):
    """Sends one signed message to a URL."""

    def send(self, url: str, *, body: bytes, headers: dict[str, str]) -> Answer:
        """Send the message and return the receiver's answer, or why there is none."""


@dataclass(frozen=True)
class ClaimedDelivery:
    """A claimed delivery with everything needed to send it, so that no transaction stays open meanwhile."""

    delivery_id: UUID
    attempt: int
    tries: int
    endpoint: WebhookEndpoint
    event: WebhookEvent


class Courier:
    """Claims due deliveries and sends them from a pool of threads."""

    def __init__(
        self,
        services: Services,
        *,
        sender: MessageSender | None = None,
        clock: Callable[[], datetime] = now,
        chance: Callable[[], float] = random_chance,
    ) -> None:
        """Prepare to send. Raise `OSError` if the file of certificate authorities cannot be read."""
        self._services, self._now, self._chance = services, clock, chance
        self._sender = sender or Sender(
            intranet=services.settings.webhook_intranet,
            resolve=targets.system_resolver,
            ca_file=services.settings.webhook_ca_file,
        )
        self._pool = ThreadPoolExecutor(SENDERS, thread_name_prefix="webhook")
        self._running: dict[Future[None], tuple[UUID, UUID]] = {}  # tenant and endpoint
        self._next_cleanup = 0.0

    def round(self) -> int:
        """Turn notices into deliveries and start sending those that are due. Return how many were started."""
        self._collect_finished()
        webhook_events.expand_notices(self._services)
        self._delete_expired()
        claimed = self._claim(SENDERS - len(self._running))
        for attempt in claimed:
            whose = (attempt.endpoint.tenant_id, attempt.endpoint.id)
            self._running[self._pool.submit(self._attempt, attempt)] = whose
        return len(claimed)

    def pause(self, stop: threading.Event, seconds: float) -> None:
        """Wait until a sender is free, or for `seconds` if none is busy."""
        if self._running:
            wait(self._running, timeout=seconds, return_when=FIRST_COMPLETED)
        else:
            stop.wait(seconds)

    def settle(self) -> None:
        """Wait until every running attempt has ended."""
        wait(self._running)
        self._collect_finished()

    def close(self) -> None:
        """Let running attempts end and be recorded. Each has a deadline, so this does not take long."""
        self._pool.shutdown(wait=True)

    def _collect_finished(self) -> None:
        for done in [future for future in self._running if future.done()]:
            del self._running[done]
            if (problem := done.exception()) is not None:  # its lease runs out, and it is sent again
                log.warning("could not record the result of an attempt", exc_info=problem)

    def _claim(self, limit: int) -> list[ClaimedDelivery]:
        moment = self._now()
        due = webhook_store.is_due(moment, max(LONGEST_WAIT, LEASE))
        with self._services.database.reading() as session:
            ids = webhook_store.due(
                session,
                due,
                limit=limit,
                per_endpoint=PER_ENDPOINT,
                per_tenant=PER_TENANT,
                busy=list(self._running.values()),
            )
        if not ids:
            return []
        claimed = []
        _ = self._services.vault  # before anything is claimed: a missing key must not use up attempts
        with self._services.database.writing() as session:
            for delivery, endpoint, event in webhook_store.lock(session, ids, due):
                delivery.attempts += 1
                delivery.tries += 1
                delivery.next_attempt_at = moment + LEASE
                claimed.append(
                    ClaimedDelivery(delivery.id, delivery.attempts, delivery.tries, endpoint, event)
                )
        return claimed

    def _attempt(self, claimed: ClaimedDelivery) -> None:
        moment, envelope = self._now(), MessageFormat(claimed.endpoint.envelope)
        body = webhook_store.body_of(claimed.event, envelope)
        signing = webhook_store.secrets_of(self._services.vault, claimed.endpoint, moment)
        headers = signed_headers(signing, claimed.event.id, body=body, sent_at=moment)
        headers["content-type"] = webhook_store.content_type_of(envelope)
        self._record(claimed, self._sender.send(claimed.endpoint.url, body=body, headers=headers))

    def _record(self, claimed: ClaimedDelivery, answer: Answer) -> None:
        moment = self._now()
        with self._services.database.writing() as session:
            if answer.status == GONE:  # the endpoint first: its deletion locks the rows in the same order
                webhook_store.disable(session, claimed.endpoint, DisabledReason.GONE)
            recorded = transitions.end_delivery(
                session,
                claimed.delivery_id,
                attempt=claimed.attempt,
                status=answer.status,
                failure=answer.failure,
                now=moment,
                retry_at=self._retry_at(claimed, answer, moment),
            )
        log.info(
            "sent a webhook",
            webhook=str(claimed.endpoint.id),
            delivery=str(claimed.delivery_id),
            attempt=claimed.attempt,
            status=answer.status,
            failure=answer.failure,
            overtaken=not recorded,
        )

    def _retry_at(self, claimed: ClaimedDelivery, answer: Answer, moment: datetime) -> datetime | None:
        """Return when to send again if this attempt failed. A ping is sent once, and 410 is final."""
        later = wait_after(claimed.tries, self._chance())
        if later is None or claimed.event.type == PING or answer.status == GONE:
            return None
        return moment + max(later, min(answer.retry_after or timedelta(0), LONGEST_RETRY_AFTER))

    def _delete_expired(self) -> None:
        """Delete old events and replaced secrets, once a minute."""
        if time.monotonic() < self._next_cleanup:
            return
        self._next_cleanup = time.monotonic() + CLEANUP_SECONDS
        limits = {"events_before": self._now() - KEPT, "secrets_before": self._now()}
        with self._services.database.reading() as session:
            if not webhook_store.has_expired(session, **limits):
                return
        with self._services.database.writing() as session:
            webhook_store.delete_expired(session, **limits)


def run(courier: Courier, stop: threading.Event, interval: float) -> None:
    """Deliver until `stop` is set. If the database or the key is not available, wait until it is."""
    while not stop.is_set():
        try:
            courier.round()
        except (SQLAlchemyError, KeyProblem) as problem:
            log.warning("the database or the deployment key is not available", problem=type(problem).__name__)
            stop.wait(interval)
        except Exception as problem:  # the thread must survive any error in one round
            log.error("a round of webhook deliveries failed", exc_info=problem)
            stop.wait(interval)
        courier.pause(stop, interval)
    courier.close()

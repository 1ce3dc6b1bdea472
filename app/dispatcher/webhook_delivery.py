"""Sends what is due. Any number may run beside each other: a delivery is claimed before it is sent.

At least once: a sender that dies between sending and writing it down is followed by another that sends
again, under the same message id. In no particular order.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol
from uuid import UUID

from sqlalchemy.exc import SQLAlchemyError

from app import logs
from app.bootstrap import Services
from app.clock import now
from app.db.webhooks import PING, DeliveryState, WebhookEndpoint, WebhookEvent
from app.vault import KeyProblem
from app.webhooks import events, repository, schedule, targets
from app.webhooks.payload import body_of, secrets_of
from app.webhooks.sending import Answer, Sender
from app.webhooks.signing import signed_headers

log = logs.get("webhooks")
SENDERS = 16
PER_ENDPOINT = 4
LEASE = timedelta(minutes=2)  # longer than any request, name servers included
KEPT = timedelta(days=30)
TIDY_SECONDS = 60.0


class Sends(Protocol):
    def send(self, url: str, *, body: bytes, headers: dict[str, str]) -> Answer: ...


@dataclass(frozen=True)
class Claimed:
    """One attempt, with all that it needs, so that no transaction is open while it is under way."""

    delivery_id: UUID
    attempt: int
    tries: int
    endpoint: WebhookEndpoint
    event: WebhookEvent


class Courier:
    def __init__(
        self,
        services: Services,
        *,
        sender: Sends | None = None,
        clock: Callable[[], datetime] = now,
        chance: Callable[[], float] = schedule.chance,
    ) -> None:
        self._services, self._now, self._chance = services, clock, chance
        self._sender = sender or Sender(
            intranet=services.settings.webhook_intranet,
            resolve=targets.system_resolver,
            ca_file=services.settings.webhook_ca_file,
        )
        self._pool = ThreadPoolExecutor(SENDERS, thread_name_prefix="webhook")
        self._flying: dict[Future[None], UUID] = {}
        self._next_tidy = 0.0

    def round(self) -> int:
        """Unfold what was noted and set off what is due; how many attempts that began."""
        self._land()
        events.unfold(self._services)
        self._forget()
        claimed = self._claim(SENDERS - len(self._flying))
        for attempt in claimed:
            self._flying[self._pool.submit(self._attempt, attempt)] = attempt.endpoint.id
        return len(claimed)

    def pause(self, stop: threading.Event, seconds: float) -> None:
        """Until a sender is free or the time is over; at once again while there is work."""
        if self._flying:
            wait(self._flying, timeout=seconds, return_when=FIRST_COMPLETED)
        else:
            stop.wait(seconds)

    def settle(self) -> None:
        """Wait for every attempt under way."""
        wait(self._flying)
        self._land()

    def close(self) -> None:
        """What is being sent is finished, within its deadline, and written down."""
        self._pool.shutdown(wait=True)

    def _land(self) -> None:
        for done in [future for future in self._flying if future.done()]:
            del self._flying[done]
            if (problem := done.exception()) is not None:  # its lease runs out, and it is sent again
                log.warning("an attempt was not recorded", exc_info=problem)

    def _claim(self, most: int) -> list[Claimed]:
        moment = self._now()
        due = repository.is_due(moment, max(schedule.LONGEST, LEASE))
        with self._services.database.reading() as session:
            ids = repository.due(
                session, due, most=most, per_endpoint=PER_ENDPOINT, busy=set(self._flying.values())
            )
        if not ids:
            return []
        claimed = []
        _ = self._services.vault  # first: a missing key must not use up attempts
        with self._services.database.writing() as session:
            for delivery, endpoint, event in repository.lock(session, ids, due):
                delivery.attempts += 1
                delivery.tries += 1
                delivery.next_attempt_at = moment + LEASE
                claimed.append(Claimed(delivery.id, delivery.attempts, delivery.tries, endpoint, event))
        return claimed

    def _attempt(self, claimed: Claimed) -> None:
        moment, body = self._now(), body_of(claimed.event)
        secrets = secrets_of(self._services.vault, claimed.endpoint, moment)
        headers = signed_headers(secrets, claimed.event.id, body=body, sent_at=moment)
        self._record(claimed, self._sender.send(claimed.endpoint.url, body=body, headers=headers))

    def _record(self, claimed: Claimed, answer: Answer) -> None:
        ending = self._ending(claimed, answer)
        with self._services.database.writing() as session:
            if answer.status == 410:  # the endpoint's row first: whoever deletes it takes the same order
                repository.disable(session, claimed.endpoint, "gone")
            recorded = repository.end_attempt(session, claimed.delivery_id, claimed.attempt, ending)
        log.info(
            "webhook",
            webhook=str(claimed.endpoint.id),
            delivery=str(claimed.delivery_id),
            attempt=claimed.attempt,
            status=answer.status,
            failure=answer.failure,
            overtaken=not recorded,
        )

    def _ending(self, claimed: Claimed, answer: Answer) -> dict[str, Any]:
        moment = self._now()
        seen = {"status_code": answer.status, "error": answer.failure}
        if answer.failure is None:
            return seen | {"state": DeliveryState.DELIVERED, "ended_at": moment}
        later = schedule.wait_after(claimed.tries, self._chance())
        if later is None or claimed.event.type == PING or answer.status == 410:
            return seen | {"state": DeliveryState.DEAD, "ended_at": moment}
        return seen | {"next_attempt_at": moment + later}

    def _forget(self) -> None:
        """Now and then: what is old, and secrets that were replaced."""
        if time.monotonic() < self._next_tidy:
            return
        self._next_tidy = time.monotonic() + TIDY_SECONDS
        limits = {"events_before": self._now() - KEPT, "secrets_before": self._now()}
        with self._services.database.reading() as session:
            if not repository.anything_to_forget(session, **limits):
                return
        with self._services.database.writing() as session:
            repository.forget(session, **limits)


def run(courier: Courier, stop: threading.Event, interval: float) -> None:
    """Until told to stop; a database that is away for a while is waited for."""
    while not stop.is_set():
        try:
            courier.round()
        except (SQLAlchemyError, KeyProblem) as problem:
            log.warning("waiting for a server or a key", problem=type(problem).__name__)
            stop.wait(interval)
        except Exception as problem:  # this thread must outlive whatever one round runs into
            log.error("a round failed", exc_info=problem)
            stop.wait(interval)
        courier.pause(stop, interval)
    courier.close()

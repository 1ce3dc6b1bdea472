"""Delivery of callbacks: telling OpenDSR controllers and Fides how their requests go."""

import json
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from sqlalchemy.exc import SQLAlchemyError

from app.core import logging
from app.core.clock import now
from app.core.opendsr_key import OpenDsrKey, load_opendsr_key
from app.core.vault import KeyProblem
from app.core.webhooks import targets
from app.core.webhooks.sender import Answer, Sender
from app.db import callbacks
from app.db.callbacks import ENDED, Protocol, RequestCallback, RequestStatus
from app.db.tables import Erasure
from app.dispatcher.webhook_delivery import (
    LEASE,
    LONGEST_RETRY_AFTER,
    LONGEST_WAIT,
    MessageSender,
    random_chance,
    wait_after,
)
from app.services import Services

log = logging.get_logger("callbacks")
SENDERS = 16
PER_TENANT = 4  # so that the hanging receivers of one tenant do not occupy every sender
LOOKED_AT = 100
LOOK_AGAIN = timedelta(seconds=15)  # after this time, the status of a request is compared again


@dataclass(frozen=True)
class Report:
    """A status to report, with everything needed to send it."""

    callback: RequestCallback
    attempt: int
    tries: int
    status: RequestStatus
    erasure: Erasure


class CallbackCourier:
    """Finds requests whose status has changed, and reports it from a few threads."""

    def __init__(
        self,
        services: Services,
        *,
        sender: MessageSender | None = None,
        clock: Callable[[], datetime] = now,
        chance: Callable[[], float] = random_chance,
    ) -> None:
        """Prepare to send. Raise `SettingsError` if the OpenDSR key cannot be used."""
        self._services, self._now, self._chance = services, clock, chance
        self._key = load_opendsr_key(services.settings)
        self._sender = sender or Sender(
            intranet=services.settings.webhook_intranet,
            resolve=targets.system_resolver,
            ca_file=services.settings.webhook_ca_file,
        )
        self._pool = ThreadPoolExecutor(SENDERS, thread_name_prefix="callback")
        self._running: dict[Future[None], UUID] = {}  # with the tenant

    def round(self) -> int:
        """Start to report the statuses that are due, as far as senders are free. Return how many."""
        self._collect_finished()
        reports = self._claim()
        for report in reports:
            self._running[self._pool.submit(self._attempt, report)] = report.erasure.tenant_id
        return len(reports)

    def pause(self, stop: threading.Event, seconds: float) -> None:
        """Wait for `seconds`, or until a sender becomes free if one is busy."""
        if self._running:
            wait(self._running, timeout=seconds, return_when=FIRST_COMPLETED)
        else:
            stop.wait(seconds)

    def settle(self) -> None:
        """Wait until every running attempt has ended."""
        wait(self._running)
        self._collect_finished()

    def close(self) -> None:
        """Let running attempts end."""
        self._pool.shutdown(wait=True)

    def _collect_finished(self) -> None:
        for done in [future for future in self._running if future.done()]:
            del self._running[done]
            if (problem := done.exception()) is not None:  # its lease runs out, and it is sent again
                log.warning("could not record the result of a callback", exc_info=problem)

    def _claim(self) -> list[Report]:
        """Claim what has to be reported. Postpone what has not changed, and leave what has no free sender."""
        moment, reports = self._now(), list[Report]()
        senders = Counter(self._running.values())
        busy = [tenant for tenant, number in senders.items() if number >= PER_TENANT]
        due = callbacks.is_due(moment, LONGEST_WAIT)
        with self._services.database.reading() as session:
            ids = callbacks.due(session, due, limit=LOOKED_AT, busy_tenants=busy)
        if not ids or len(self._running) >= SENDERS:
            return []
        _ = self._services.vault  # before anything is claimed: a missing key must not use up attempts
        with self._services.database.writing() as session:
            for callback, erasure in callbacks.lock(session, ids, due):
                status = callbacks.status_of(session, callback.erasure_id)
                wanted = callback.protocol == Protocol.OPENDSR or status in ENDED
                if status == callback.reported or not wanted:
                    callback.next_attempt_at = moment + LOOK_AGAIN
                    continue
                if senders[erasure.tenant_id] >= PER_TENANT or senders.total() >= SENDERS:
                    continue
                senders[erasure.tenant_id] += 1
                callback.attempts += 1
                callback.tries += 1
                callback.next_attempt_at = moment + LEASE
                reports.append(Report(callback, callback.attempts, callback.tries, status, erasure))
        return reports

    def _attempt(self, report: Report) -> None:
        callback = report.callback
        if callback.protocol == Protocol.FIDES:
            body = b"{}"
            token = callbacks.token_of(self._services.vault, callback)
            headers = {} if token is None else {"authorization": f"Bearer {token}"}
        else:
            body = _status_body(report)
            headers = _signed(self._key, body)
        self._record(report, self._sender.send(callback.url, body=body, headers=headers))

    def _record(self, report: Report, answer: Answer) -> None:
        moment, values = self._now(), dict[str, object]()
        if answer.failure is None:
            values = {"reported": report.status.value, "tries": 0, "next_attempt_at": moment + LOOK_AGAIN}
            ended = report.status in ENDED
        else:
            later = wait_after(report.tries, self._chance())
            asked = min(answer.retry_after or timedelta(0), LONGEST_RETRY_AFTER)
            ended = later is None
            values = {"next_attempt_at": moment + max(later or LOOK_AGAIN, asked)}
        if ended:
            values |= {"ended_at": moment, "token": None}
        with self._services.database.writing() as session:
            callbacks.finish_attempt(session, report.callback.id, report.attempt, **values)
        log.info(
            "sent a callback",
            protocol=report.callback.protocol,
            callback=str(report.callback.id),
            attempt=report.attempt,
            status=answer.status,
            failure=answer.failure,
        )


def _status_body(report: Report) -> bytes:
    """Return the body of an OpenDSR callback."""
    return json.dumps(
        {
            "controller_id": str(report.erasure.tenant_id),
            "subject_request_id": report.callback.request_id,
            "request_status": report.status.value,
            "expected_completion_time": report.erasure.due_at.astimezone(UTC).isoformat(),
            "status_callback_url": report.callback.url,
            "results_url": None,
        }
    ).encode()


def _signed(key: OpenDsrKey | None, body: bytes) -> dict[str, str]:
    if key is None:
        raise RuntimeError("OpenDSR was switched off; set LETHE_OPENDSR_KEY_FILE to report open requests")
    return key.signed_headers(body)


def run(courier: CallbackCourier, stop: threading.Event, interval: float) -> None:
    """Report until `stop` is set. If the database or the key is not available, wait until it is."""
    outage = logging.OutageLog(log, "database or deployment key")
    while not stop.is_set():
        started = 0
        try:
            started = courier.round()
            outage.over()
        except (SQLAlchemyError, KeyProblem) as problem:
            outage.failed(problem)
        except Exception as problem:  # the thread must survive any error in one round
            log.error("a round of callbacks failed", exc_info=problem)
        if started:
            courier.pause(stop, interval)
        else:
            stop.wait(interval)
    courier.close()

"""Group commit of erasure requests: all waiting requests are written in one transaction, then answered.

A request is answered only after the commit that contains it. A duplicate with the same Idempotency-Key that
arrives meanwhile waits for the first request and gets its answer. If the database rejects a group, each
request is written on its own, so that one bad request cannot fail the others. Tenants take turns. If the
queue is full, a tenant that has its share of it is refused with 503 at once: nothing is dropped silently.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy.exc import OperationalError, SQLAlchemyError

from app.core import logging
from app.core.storage import StorageUnavailable
from app.core.vault import KeyProblem
from app.gateway.erasures.fair_queue import FairQueue
from app.gateway.erasures.recording import Answer, PreparedErasure, record_group
from app.gateway.erasures.single_statement import SingleStatement
from app.gateway.errors import ServiceError, Unavailable
from app.services import Services

log = logging.get_logger("gateway")
MAX_WAITING = 4096
MAX_GROUP = 256
MAX_GROUP_ROWS = 20_000
MAX_WAITING_ROWS = 1_000_000
UNKNOWN_MODELS = 100  # assumed of a tenant until its first answer tells how many models it has

_OUTAGES = (StorageUnavailable, OSError, KeyProblem)  # of the storage that holds the data keys

Commit = Callable[[Sequence[PreparedErasure]], list[Answer | BaseException]]


@dataclass(frozen=True)
class _Waiting:
    """A request in the queue. `rows` is how many rows its subjects need."""

    prepared: PreparedErasure
    rows: int
    answer: "asyncio.Future[Answer]"

    @property
    def tenant(self) -> UUID:
        """The tenant that sent it."""
        tenant: UUID = self.prepared.erasure["tenant_id"]
        return tenant


class _Lane:
    """A queue, and the one task and thread that write what waits in it, group by group."""

    def __init__(self, name: str, commit: Commit, answer: Callable[[_Waiting, Any], None]) -> None:
        self._queue: FairQueue[_Waiting] = FairQueue(max_requests=MAX_WAITING, max_rows=MAX_WAITING_ROWS)
        self._commit, self._answer = commit, answer
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._writer = asyncio.create_task(self._write(), name=name)

    def put(self, waiting: _Waiting) -> None:
        """Queue a request. Raise `Unavailable` if too much is waiting."""
        if not self._queue.put(waiting):
            raise Unavailable(
                "Too many erasure requests are waiting to be recorded. Try again in a second.",
                headers={"Retry-After": "1"},
            )

    async def close(self) -> None:
        """Answer every accepted request, then stop the writer."""
        await self._queue.join()
        self._writer.cancel()
        self._thread.shutdown()

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            group = await self._queue.get_group(max_requests=MAX_GROUP, max_rows=MAX_GROUP_ROWS)
            try:
                outcomes = await loop.run_in_executor(self._thread, self._commit, [w.prepared for w in group])
            except BaseException as problem:
                outcomes = [problem] * len(group)
                if not isinstance(problem, Exception):
                    raise
            finally:
                self._queue.done(group)
            for waiting, outcome in zip(group, outcomes, strict=True):
                self._answer(waiting, outcome)


class GroupCommit:
    """The queues of erasure requests. Used as an async context manager.

    Large requests have a queue and a thread of their own: writing one takes seconds, and small requests need
    not wait for that. On SQLite they wait nevertheless, because only one transaction can write at a time.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._single_statement = None if services.database.is_sqlite else SingleStatement(services)
        self._model_counts: dict[UUID, int] = {}

    async def __aenter__(self) -> "GroupCommit":
        self._small = _Lane("group-commit", self._commit, self._answer)
        self._large = _Lane("large-requests", self._commit_large, self._answer)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Answer every accepted request, then stop the writers."""
        await self._small.close()
        await self._large.close()
        if self._single_statement is not None:
            self._single_statement.close()

    async def submit(self, prepared: PreparedErasure) -> Answer:
        """Queue a request and wait until it is committed. Raise `Unavailable` if too much is waiting."""
        loop = asyncio.get_running_loop()
        waiting = _Waiting(prepared, self._count_rows(prepared), loop.create_future())
        if waiting.rows > MAX_GROUP_ROWS:  # writing it may take long
            self._large.put(waiting)
            return await waiting.answer
        self._small.put(waiting)
        timer = loop.call_later(self._services.settings.database_seconds, _give_up, waiting.answer)
        try:
            return await waiting.answer
        finally:
            timer.cancel()

    def _count_rows(self, prepared: PreparedErasure) -> int:
        """Count one row per subject and model. The tenant's number of models is that of its last request."""
        if prepared.models is None:
            models = self._model_counts.get(prepared.erasure["tenant_id"], UNKNOWN_MODELS)
        else:
            models = len(prepared.models)
        return len(prepared.identifiers) * max(models, 1)

    def _answer(self, waiting: _Waiting, outcome: Answer | BaseException) -> None:
        if waiting.answer.done():  # the client disconnected or was told to repeat; the outcome is the same
            return
        if isinstance(outcome, BaseException):
            waiting.answer.set_exception(outcome)
            return
        waiting.answer.set_result(outcome)
        if waiting.prepared.models is None and not outcome.replayed:
            self._model_counts[waiting.tenant] = outcome.models

    def _commit_large(self, group: Sequence[PreparedErasure]) -> list[Answer | BaseException]:
        """Write each request in a transaction of its own."""
        return [self._commit_alone(prepared) for prepared in group]

    def _commit(self, group: Sequence[PreparedErasure]) -> list[Answer | BaseException]:
        """Write a group with one statement where possible, and the rest in one transaction."""
        answers: dict[UUID, Answer] = {}
        if self._single_statement is not None:
            try:
                answers = self._single_statement.record(group)
            except OperationalError:  # the outcome is unknown, so nothing may be written again
                raise
            except Exception as problem:  # the database rejected the statement and wrote nothing
                log.warning("single statement rejected", size=len(group), kind=type(problem).__name__)
        rest = [prepared for prepared in group if prepared.id not in answers]
        outcomes = dict(zip((prepared.id for prepared in rest), self._commit_rest(rest), strict=True))
        return [answers.get(prepared.id) or outcomes[prepared.id] for prepared in group]

    def _commit_rest(self, group: Sequence[PreparedErasure]) -> list[Answer | BaseException]:
        if not group:
            return []
        try:
            outcomes: list[Answer | BaseException] = list(record_group(self._services, group))
        except (OperationalError, *_OUTAGES) as problem:  # single requests would fail as well
            return [problem] * len(group)
        except Exception as problem:
            log.warning(
                "group rejected, writing each request on its own",
                size=len(group),
                kind=type(problem).__name__,
            )
            return [self._commit_alone(prepared) for prepared in group]
        self._learn_models(group)
        return outcomes

    def _learn_models(self, group: Sequence[PreparedErasure]) -> None:
        """Let the next group of these tenants be written with one statement. Failing to is harmless."""
        if self._single_statement is None:
            return
        try:
            self._single_statement.learn_models({p.erasure["tenant_id"] for p in group})
        except SQLAlchemyError as problem:
            log.warning("models not read", kind=type(problem).__name__)

    def _commit_alone(self, prepared: PreparedErasure) -> Answer | BaseException:
        try:
            return record_group(self._services, [prepared])[0]
        except Exception as problem:
            known = isinstance(problem, (ServiceError, OperationalError, *_OUTAGES))
            return problem if known else ServiceError(type(problem).__name__)


def _give_up(answer: "asyncio.Future[Answer]") -> None:
    """Answer a request that the database takes too long to record."""
    if not answer.done():
        log.error("the database does not answer", waiting_for="erasure requests")
        answer.set_exception(
            Unavailable(
                "The database does not answer, so we do not know whether the request is recorded. Send it "
                "again in a few seconds, with the same Idempotency-Key if it has one.",
                headers={"Retry-After": "5"},
            )
        )

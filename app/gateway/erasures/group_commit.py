"""Group commit of erasure requests: all waiting requests are written in one transaction, then answered.

A request is answered only after the commit that contains it. A duplicate with the same Idempotency-Key that
arrives meanwhile waits for the first request and gets its answer. If the database rejects a group, each
request is written on its own, so that one bad request cannot fail the others. If the queue is full, a
request is refused with 503 at once: nothing is dropped silently.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy.exc import OperationalError, SQLAlchemyError

from app.core import logging
from app.gateway.erasures.recording import Answer, PreparedErasure, record_group
from app.gateway.erasures.single_statement import SingleStatement
from app.gateway.errors import ServiceError, Unavailable
from app.services import Services

log = logging.get_logger("gateway")
MAX_WAITING = 4096
MAX_GROUP = 256
MAX_GROUP_ROWS = 20_000
MAX_WAITING_ROWS = 1_000_000


@dataclass(frozen=True)
class _Waiting:
    """A request in the queue. `rows` is how many rows its subjects need."""

    prepared: PreparedErasure
    rows: int
    answer: "asyncio.Future[Answer]"


class GroupCommit:
    """The queue of erasure requests, and the one task that writes them. Used as an async context manager."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._queue: asyncio.Queue[_Waiting] = asyncio.Queue(MAX_WAITING)
        self._single_statement = None if services.database.is_sqlite else SingleStatement(services.database)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="group-commit")
        self._writer: asyncio.Task[None] | None = None
        self._rows_waiting = 0
        self._model_counts: dict[UUID, int] = {}

    async def __aenter__(self) -> "GroupCommit":
        self._writer = asyncio.create_task(self._write(), name="group-commit")
        return self

    async def __aexit__(self, *_: object) -> None:
        """Answer every accepted request, then stop the writer."""
        await self._queue.join()
        if self._writer is not None:
            self._writer.cancel()
        self._thread.shutdown()
        if self._single_statement is not None:
            self._single_statement.close()

    async def submit(self, prepared: PreparedErasure) -> Answer:
        """Queue a request and wait until it is committed. Raise `Unavailable` if too much is waiting."""
        waiting = _Waiting(prepared, self._count_rows(prepared), asyncio.get_running_loop().create_future())
        crowded = self._rows_waiting and self._rows_waiting + waiting.rows > MAX_WAITING_ROWS
        if crowded or self._queue.full():
            raise Unavailable(
                "Too many erasure requests are waiting to be recorded. Try again in a second.",
                headers={"Retry-After": "1"},
            )
        self._queue.put_nowait(waiting)
        self._rows_waiting += waiting.rows
        return await waiting.answer

    def _count_rows(self, prepared: PreparedErasure) -> int:
        """Count one row per subject and model. The tenant's number of models is that of its last request."""
        if prepared.models is None:
            models = self._model_counts.get(prepared.erasure["tenant_id"], 1)
        else:
            models = len(prepared.models)
        return len(prepared.identifiers) * max(models, 1)

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            group = await self._next_group()
            try:
                outcomes = await loop.run_in_executor(self._thread, self._commit, [w.prepared for w in group])
            except BaseException as problem:
                outcomes = [problem] * len(group)
                if not isinstance(problem, Exception):
                    raise
            finally:
                for waiting in group:
                    self._rows_waiting -= waiting.rows
                    self._queue.task_done()
            for waiting, outcome in zip(group, outcomes, strict=True):
                self._answer(waiting, outcome)

    def _answer(self, waiting: _Waiting, outcome: Answer | BaseException) -> None:
        if waiting.answer.cancelled():  # the client disconnected; its request is recorded nevertheless
            return
        if isinstance(outcome, BaseException):
            waiting.answer.set_exception(outcome)
            return
        waiting.answer.set_result(outcome)
        if waiting.prepared.models is None and not outcome.replayed:
            self._model_counts[waiting.prepared.erasure["tenant_id"]] = outcome.models

    async def _next_group(self) -> list[_Waiting]:
        """Take all waiting requests, up to a limit on requests and on rows."""
        group = [await self._queue.get()]
        rows = group[0].rows
        while len(group) < MAX_GROUP and rows < MAX_GROUP_ROWS and not self._queue.empty():
            group.append(self._queue.get_nowait())
            rows += group[-1].rows
        return group

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
            outcomes: list[Answer | BaseException] = list(record_group(self._services.database, group))
        except OperationalError as problem:  # unreachable: single requests would fail as well
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
            return record_group(self._services.database, [prepared])[0]
        except Exception as problem:
            return problem if isinstance(problem, ServiceError) else ServiceError(type(problem).__name__)

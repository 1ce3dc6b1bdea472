"""Group commit: one writer turns all waiting requests into one transaction, then answers them.

A request is answered only after the commit that holds it. A duplicate (same Idempotency-Key) that arrives
while the first is under way waits for it and gets its answer. A request that the database refuses is tried
alone, so that it cannot spoil its neighbours. A full queue answers 503 at once; nothing is dropped silently.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy.exc import OperationalError

from app import logs
from app.bootstrap import Services
from app.erasures.recording import Answer, Prepared, record_group
from app.errors import ServiceError, Unavailable

log = logs.get("intake")
MOST_WAITING = 4096
MOST_IN_GROUP = 256
MOST_ROWS_IN_GROUP = 20_000
MOST_ROWS_WAITING = 1_000_000


@dataclass(frozen=True)
class _Waiting:
    prepared: Prepared
    rows: int
    answer: "asyncio.Future[Answer]"


class Intake:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._queue: asyncio.Queue[_Waiting] = asyncio.Queue(MOST_WAITING)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="intake")
        self._writer: asyncio.Task[None] | None = None
        self._rows_waiting = 0
        self._models: dict[UUID, int] = {}

    async def __aenter__(self) -> "Intake":
        self._writer = asyncio.create_task(self._write(), name="intake")
        return self

    async def __aexit__(self, *_: object) -> None:
        """Whoever was let in is answered before the door closes."""
        await self._queue.join()
        if self._writer is not None:
            self._writer.cancel()
        self._thread.shutdown()

    async def submit(self, prepared: Prepared) -> Answer:
        waiting = _Waiting(prepared, self._rows(prepared), asyncio.get_running_loop().create_future())
        crowded = self._rows_waiting and self._rows_waiting + waiting.rows > MOST_ROWS_WAITING
        if crowded or self._queue.full():
            raise Unavailable("Too many requests are waiting.", headers={"Retry-After": "1"})
        self._queue.put_nowait(waiting)
        self._rows_waiting += waiting.rows
        return await waiting.answer

    def _rows(self, prepared: Prepared) -> int:
        """One per subject and model. How many models a tenant has is known from its last request."""
        named = prepared.models
        models = self._models.get(prepared.erasure["tenant_id"], 1) if named is None else len(named)
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
                if (
                    waiting.answer.cancelled()
                ):  # the caller went away; what it asked for is recorded all the same
                    continue
                if isinstance(outcome, BaseException):
                    waiting.answer.set_exception(outcome)
                else:
                    waiting.answer.set_result(outcome)
                    if waiting.prepared.models is None and not outcome.replayed:
                        self._models[waiting.prepared.erasure["tenant_id"]] = outcome.models

    async def _next_group(self) -> list[_Waiting]:
        """Everyone who waits now, up to a limit on the rows to write."""
        group = [await self._queue.get()]
        rows = group[0].rows
        while len(group) < MOST_IN_GROUP and rows < MOST_ROWS_IN_GROUP and not self._queue.empty():
            group.append(self._queue.get_nowait())
            rows += group[-1].rows
        return group

    def _commit(self, group: Sequence[Prepared]) -> list[Answer | BaseException]:
        try:
            return list(record_group(self._services.database, group))
        except OperationalError:  # the database is away: nobody's fault, and nobody is helped by trying alone
            raise
        except Exception as problem:
            log.warning(
                "a group was refused, each is tried alone", size=len(group), kind=type(problem).__name__
            )
        return [self._commit_alone(prepared) for prepared in group]

    def _commit_alone(self, prepared: Prepared) -> Answer | BaseException:
        try:
            return record_group(self._services.database, [prepared])[0]
        except Exception as problem:
            return problem if isinstance(problem, ServiceError) else ServiceError(type(problem).__name__)

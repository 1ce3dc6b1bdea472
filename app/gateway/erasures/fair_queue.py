"""A queue in which tenants take turns, so that none of them waits for everything another has sent."""

import asyncio
from collections import Counter, deque
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar
from uuid import UUID


class QueuedRequest(Protocol):
    """What the queue has to know about a request."""

    @property
    def tenant(self) -> UUID:
        """The tenant that sent it."""

    @property
    def rows(self) -> int:
        """How many rows it writes."""


R = TypeVar("R", bound=QueuedRequest)


class FairQueue(Generic[R]):
    """Requests in one line per tenant. It is used on the event loop alone.

    `max_requests` and `max_rows` limit what may be unfinished: waiting, or taken and not marked as done. If
    the queue is full, a tenant can still add requests until it has its share, which is an equal part of the
    whole. A tenant that has nothing in the queue can always add one request.
    """

    def __init__(self, *, max_requests: int, max_rows: int) -> None:
        self._max_requests, self._max_rows = max_requests, max_rows
        self._lines: dict[UUID, deque[R]] = {}
        self._requests: Counter[UUID] = Counter()
        self._rows: Counter[UUID] = Counter()
        self._all_requests = self._all_rows = 0
        self._arrived, self._empty = asyncio.Event(), asyncio.Event()
        self._empty.set()

    def put(self, request: R) -> bool:
        """Add a request to the line of its tenant. Return False if the queue has no room for it."""
        if not self._has_room(request):
            return False
        self._lines.setdefault(request.tenant, deque()).append(request)
        self._count(request, 1)
        self._arrived.set()
        self._empty.clear()
        return True

    def _has_room(self, request: R) -> bool:
        tenant = request.tenant
        if tenant not in self._requests:
            return True
        if self._all_requests < self._max_requests and self._all_rows + request.rows <= self._max_rows:
            return True
        tenants = len(self._requests)
        return (
            self._requests[tenant] < self._max_requests // tenants
            and self._rows[tenant] + request.rows <= self._max_rows // tenants
        )

    async def get_group(self, *, max_requests: int, max_rows: int) -> list[R]:
        """Wait for a request, then take as many as a group may have: one of each tenant, in turns."""
        await self._arrived.wait()
        group: list[R] = []
        rows = 0
        while self._lines and len(group) < max_requests and rows < max_rows:
            tenant = next(iter(self._lines))
            line = self._lines.pop(tenant)
            group.append(line.popleft())
            rows += group[-1].rows
            if line:
                self._lines[tenant] = line  # behind all others
        if not self._lines:
            self._arrived.clear()
        return group

    def done(self, group: Sequence[R]) -> None:
        """Mark the requests of a group as finished."""
        for request in group:
            self._count(request, -1)
            if not self._requests[request.tenant]:
                del self._requests[request.tenant], self._rows[request.tenant]
        if not self._requests:
            self._empty.set()

    def _count(self, request: R, sign: int) -> None:
        self._requests[request.tenant] += sign
        self._rows[request.tenant] += sign * request.rows
        self._all_requests += sign
        self._all_rows += sign * request.rows

    async def join(self) -> None:
        """Wait until every request is finished."""
        await self._empty.wait()

"""Tenants take turns in the queue of erasure requests, and none of them can fill it for the others."""

import asyncio
from dataclasses import dataclass
from uuid import UUID

from app.gateway.erasures.fair_queue import FairQueue

A, B, C = UUID(int=1), UUID(int=2), UUID(int=3)


@dataclass(frozen=True)
class Request:
    tenant: UUID
    number: int = 0
    rows: int = 1


def take(queue: FairQueue[Request], *, max_requests: int = 100, max_rows: int = 100) -> list[Request]:
    return asyncio.run(queue.get_group(max_requests=max_requests, max_rows=max_rows))


def test_tenants_take_turns_and_each_keeps_its_order() -> None:
    queue: FairQueue[Request] = FairQueue(max_requests=100, max_rows=100)
    for request in (Request(A, 1), Request(A, 2), Request(A, 3), Request(B, 1), Request(C, 1), Request(B, 2)):
        assert queue.put(request)
    order = [(r.tenant, r.number) for _ in range(2) for r in take(queue, max_requests=3)]
    assert order == [(A, 1), (B, 1), (C, 1), (A, 2), (B, 2), (A, 3)]


def test_a_group_ends_with_the_request_that_reaches_its_rows() -> None:
    queue: FairQueue[Request] = FairQueue(max_requests=100, max_rows=100)
    for rows in (3, 3, 3):
        queue.put(Request(A, rows=rows))
    assert [len(take(queue, max_rows=4)) for _ in range(2)] == [2, 1]


def test_a_tenant_that_fills_the_queue_does_not_keep_others_out() -> None:
    queue: FairQueue[Request] = FairQueue(max_requests=4, max_rows=1000)
    assert [queue.put(Request(A)) for _ in range(6)] == [True] * 4 + [False] * 2
    assert [queue.put(Request(B)) for _ in range(3)] == [True, True, False], "half of the queue"
    assert [queue.put(Request(C)) for _ in range(2)] == [True, False]


def test_rows_are_shared_as_well_and_one_request_always_fits() -> None:
    queue: FairQueue[Request] = FairQueue(max_requests=100, max_rows=10)
    assert queue.put(Request(A, rows=50))
    assert not queue.put(Request(A))
    assert queue.put(Request(B, rows=3))
    assert queue.put(Request(B, rows=2))
    assert not queue.put(Request(B))


def test_what_was_taken_counts_until_it_is_done() -> None:
    queue: FairQueue[Request] = FairQueue(max_requests=2, max_rows=100)

    async def run() -> None:
        assert queue.put(Request(A))
        assert queue.put(Request(A))
        group = await queue.get_group(max_requests=10, max_rows=10)
        assert not queue.put(Request(A))
        finished = asyncio.create_task(queue.join())
        await asyncio.sleep(0)
        assert not finished.done()
        queue.done(group)
        await finished
        assert queue.put(Request(A))

    asyncio.run(run())

"""Tenants share the slots of a gateway, and an upload that drips loses its slot."""

import asyncio
from uuid import UUID

import pytest

from app.gateway.errors import RequestTimeout
from app.gateway.tenant_slots import TenantSlots
from app.gateway.uploads import at_pace

A, B, C = UUID(int=1), UUID(int=2), UUID(int=3)


def take_all(slots: TenantSlots, tenant: UUID) -> int:
    """Take slots until there is no more room for the tenant, and return how many."""
    taken = 0
    while slots.has_room(tenant):
        slots.take(tenant)
        taken += 1
    return taken


@pytest.mark.parametrize(("maximum", "alone"), [(0, 0), (1, 1), (4, 3), (16, 12), (200, 150)])
def test_a_tenant_can_take_three_quarters(maximum: int, alone: int) -> None:
    assert take_all(TenantSlots(maximum), A) == alone


def test_there_is_a_slot_for_each_tenant_that_comes_later() -> None:
    slots = TenantSlots(16)
    assert [take_all(slots, tenant) for tenant in (A, B, C)] == [12, 3, 1]
    assert slots.taken == 16
    slots.release(A)
    assert not slots.has_room(A), "the free slot is for others"
    assert slots.has_room(UUID(int=4))


def test_who_waits_gets_a_slot_that_is_released_and_gives_up_in_time() -> None:
    async def run() -> None:
        slots = TenantSlots(1)
        assert await slots.take_within(0.0, A)
        assert not await slots.take_within(0.0, B)
        waiting = asyncio.create_task(slots.take_within(120.0, B))
        await asyncio.sleep(0)
        slots.release(A)
        assert await waiting
        assert slots.taken == 1

    asyncio.run(run())


class Sender:
    """Sends chunks of a size at an interval, on a clock of its own."""

    def __init__(self, *chunks: tuple[float, int]) -> None:
        self.moment, self.chunks = 0.0, iter(chunks)

    def __iter__(self) -> "Sender":
        return self

    def __next__(self) -> bytes:
        seconds, size = next(self.chunks)
        self.moment += seconds
        return b"x" * size

    def received(self) -> int:
        return sum(map(len, at_pace(self, 30.0, 100.0, clock=lambda: self.moment)))


def test_an_upload_that_drips_is_given_up() -> None:
    with pytest.raises(RequestTimeout, match="too slowly"):
        Sender(*[(10.0, 1)] * 3).received()


def test_an_upload_that_starts_fast_and_then_drips_is_given_up() -> None:
    with pytest.raises(RequestTimeout):
        Sender((30.0, 10_000_000), *[(10.0, 1)] * 3).received()


def test_a_steady_upload_may_take_as_long_as_it_needs() -> None:
    assert Sender(*[(10.0, 1000)] * 100).received() == 100_000


def test_a_short_file_may_come_slowly() -> None:
    assert Sender((29.0, 1)).received() == 1

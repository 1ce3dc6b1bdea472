"""Slots of a gateway that tenants share, such as those for uploads and for event streams."""

import time
from collections import Counter
from uuid import UUID

import anyio

# A tenant may hold this many times as many slots as are free. Alone it can take three quarters of them. Two
# that want all get three sevenths each. So there is nearly always a slot left for a tenant that has none.
# See Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches", 1998.
HELD_PER_FREE = 3


class TenantSlots:
    """A number of slots, of which no tenant can take all if there are at least four."""

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self._held: Counter[UUID] = Counter()
        self._released = anyio.Event()

    @property
    def taken(self) -> int:
        """How many slots are taken."""
        return self._held.total()

    def has_room(self, tenant: UUID) -> bool:
        """Return whether the tenant may take a slot now."""
        return self._held[tenant] < HELD_PER_FREE * (self.maximum - self.taken)

    def take(self, tenant: UUID) -> None:
        """Take a slot. Ask `has_room` first."""
        self._held[tenant] += 1

    def release(self, tenant: UUID) -> None:
        """Give a slot back."""
        self._held[tenant] -= 1
        if not self._held[tenant]:
            del self._held[tenant]
        released, self._released = self._released, anyio.Event()
        released.set()

    async def take_within(self, seconds: float, tenant: UUID) -> bool:
        """Wait for a slot and take it. Return False if there is none for the tenant within `seconds`."""
        deadline = time.monotonic() + seconds
        while not self.has_room(tenant):
            with anyio.move_on_after(deadline - time.monotonic()) as waiting:
                await self._released.wait()
            if waiting.cancelled_caught:
                return False
        self.take(tenant)
        return True

"""The clock and the id generator of the service."""

import secrets
import threading
import time
from datetime import UTC, datetime
from uuid import UUID

_TAIL_BITS = 74  # what a UUIDv7 has besides the time, the version and the variant
_STEP_BITS = 40


def now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


class _IdGenerator:
    """Makes UUIDv7 ids (RFC 9562, 5.7) that grow from one to the next, also within a millisecond.

    Within a millisecond the random tail is increased by a random step (RFC 9562, 6.2, method 2). If the clock
    is set back, the time of the last id is used until the clock has caught up.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._milliseconds = 0
        self._tail = 0

    def make(self) -> UUID:
        """Return an id that is greater than every id this generator has returned."""
        with self._lock:
            milliseconds = time.time_ns() // 1_000_000
            if milliseconds > self._milliseconds:
                self._milliseconds = milliseconds
                self._tail = secrets.randbits(_TAIL_BITS - 1)
            else:
                self._tail += 1 + secrets.randbits(_STEP_BITS)
            if self._tail >> _TAIL_BITS:
                self._milliseconds, self._tail = self._milliseconds + 1, secrets.randbits(_TAIL_BITS - 1)
            head, tail = self._milliseconds & (1 << 48) - 1, self._tail
        version, variant = 0x7 << 76, 0x2 << 62
        return UUID(int=head << 80 | version | tail >> 62 << 64 | variant | tail & (1 << 62) - 1)


_ids = _IdGenerator()


def new_id() -> UUID:
    """Return a new UUIDv7, greater than every id this process has made, so that rows sort by age."""
    return _ids.make()

"""The one clock and the one id generator."""

import os
import time
from datetime import UTC, datetime
from uuid import UUID


def now() -> datetime:
    return datetime.now(UTC)


def new_id() -> UUID:
    """A UUIDv7 (RFC 9562, 5.7): time-ordered, so that primary keys are appended, not scattered."""
    milliseconds = time.time_ns() // 1_000_000
    value = (milliseconds & (1 << 48) - 1) << 80 | int.from_bytes(os.urandom(10))
    value = value & ~(0xF << 76) | 0x7 << 76  # version
    value = value & ~(0x3 << 62) | 0x2 << 62  # variant
    return UUID(int=value)

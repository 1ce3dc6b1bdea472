"""When a delivery that failed is tried again: over about a day, then it is dead until someone replays it."""

import secrets
from datetime import timedelta

WAITS = (
    timedelta(seconds=5),
    timedelta(seconds=30),
    timedelta(minutes=2),
    timedelta(minutes=10),
    timedelta(minutes=30),
    timedelta(hours=1),
    timedelta(hours=2),
    timedelta(hours=4),
    timedelta(hours=6),
    timedelta(hours=10),
)
SPREAD = 0.2  # by so much each wait is longer or shorter, lest all come back at the same moment
LONGEST = max(WAITS) * (1 + SPREAD)


def wait_after(tries: int, chance: float) -> timedelta | None:
    """None after the last try; `chance` in [0, 1) places the wait within its spread.

    >>> wait_after(1, 0.5), wait_after(11, 0.5)
    (datetime.timedelta(seconds=5), None)
    """
    if tries > len(WAITS):
        return None
    return WAITS[tries - 1] * (1 - SPREAD + 2 * SPREAD * chance)


def chance() -> float:
    return secrets.randbelow(1 << 20) / (1 << 20)

"""Wall-clock and processor seconds. On a machine with other load only the latter are comparable."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Clock:
    """A pair of durations in seconds."""

    wall: float = 0.0
    processor: float = 0.0  # summed over threads

    def __add__(self, other: "Clock") -> "Clock":
        return Clock(self.wall + other.wall, self.processor + other.processor)

    def record(self) -> dict[str, float]:
        """Return the durations for a report."""
        return {"seconds": self.wall, "processor_seconds": self.processor}


def clocked(call: Callable[[], T]) -> tuple[Clock, T]:
    """Call a function and return its durations and its result."""
    wall, processor = time.perf_counter(), time.process_time()
    result = call()
    return Clock(time.perf_counter() - wall, time.process_time() - processor), result

"""Seconds on the wall and of the processor: on a machine with other work only the second can be compared."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Clock:
    wall: float = 0.0
    processor: float = 0.0  # summed over threads

    def __add__(self, other: "Clock") -> "Clock":
        return Clock(self.wall + other.wall, self.processor + other.processor)

    def record(self) -> dict[str, float]:
        return {"seconds": self.wall, "processor_seconds": self.processor}


def clocked(call: Callable[[], T]) -> tuple[Clock, T]:
    wall, processor = time.perf_counter(), time.process_time()
    result = call()
    return Clock(time.perf_counter() - wall, time.process_time() - processor), result

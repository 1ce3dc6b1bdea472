"""The tests, and what several of them need."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(look: Callable[[], T], *, within: float = 60.0, every: float = 0.05) -> T:
    """The first truthy answer; a test that waits for something looks for it, and never just sleeps."""
    deadline = time.monotonic() + within
    while not (found := look()):
        assert time.monotonic() < deadline, f"not so within {within} s"
        time.sleep(every)
    return found

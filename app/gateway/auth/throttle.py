"""A limit on failed sign-ins from one address, kept in memory by each gateway."""

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable

from app.gateway.errors import TooManyRequests

MOST_FAILURES = 20
WINDOW_SECONDS = 60.0
MAX_ADDRESSES = 10_000


class SignInThrottle:
    """Refuses sign-ins from an address that failed `MOST_FAILURES` times within `WINDOW_SECONDS`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()
        self._lock = threading.Lock()

    def check(self, address: str) -> None:
        """Raise `TooManyRequests` if sign-ins from this address have to wait."""
        with self._lock:
            failures = self._recent(address)
            if len(failures) < MOST_FAILURES:
                return
            wait = int(failures[0] + WINDOW_SECONDS - self._clock()) + 1
        raise TooManyRequests(
            f"There were too many failed sign-ins. Try again in {wait} seconds.",
            headers={"Retry-After": str(wait)},
        )

    def failed(self, address: str) -> None:
        """Count a failed sign-in. The addresses that failed longest ago are forgotten first."""
        with self._lock:
            self._recent(address).append(self._clock())
            self._failures.move_to_end(address)
            while len(self._failures) > MAX_ADDRESSES:
                self._failures.popitem(last=False)

    def _recent(self, address: str) -> deque[float]:
        failures = self._failures.setdefault(address, deque(maxlen=MOST_FAILURES))
        while failures and failures[0] <= self._clock() - WINDOW_SECONDS:
            failures.popleft()
        return failures

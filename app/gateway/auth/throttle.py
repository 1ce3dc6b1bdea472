"""A limit on failed sign-ins from one address."""

import time
from collections.abc import Callable

from app.gateway.rate_limits import RateLimit

REFUSAL = "There were too many failed sign-ins."


class SignInThrottle:
    """Refuses sign-ins from an address that has failed too often within a minute. Others do not count."""

    def __init__(self, most_failures: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._failures = RateLimit("failed-sign-ins", most_failures, clock)

    def check(self, address: str) -> None:
        """Raise `TooManyRequests` if sign-ins from this address have to wait."""
        self._failures.check(address, REFUSAL)

    def failed(self, address: str) -> None:
        """Count a failed sign-in."""
        self._failures.hit(address)

"""Failed sign-ins from one address have to wait."""

import pytest

from app.gateway import rate_limits
from app.gateway.auth.throttle import SignInThrottle
from app.gateway.errors import TooManyRequests


def test_the_throttle_forgets_after_its_window() -> None:
    moment = 0.0
    limit = SignInThrottle(20, clock=lambda: moment)
    for _ in range(20):
        limit.check("a")
        limit.failed("a")
    with pytest.raises(TooManyRequests):
        limit.check("a")
    limit.check("b")
    moment = 60.0
    limit.check("a")


def test_the_throttle_remembers_a_bounded_number_of_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limits, "MAX_WINDOWS", 3)
    limit = SignInThrottle(20, clock=lambda: 0.0)
    for address in "abcd":
        for _ in range(20):
            limit.failed(address)
    limit.check("a")
    with pytest.raises(TooManyRequests):
        limit.check("d")


def test_the_throttle_can_be_switched_off() -> None:
    limit = SignInThrottle(0, clock=lambda: 0.0)
    for _ in range(100):
        limit.failed("a")
        limit.check("a")

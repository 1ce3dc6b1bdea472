"""Failed sign-ins from one address have to wait."""

import pytest

from app.gateway.auth import throttle
from app.gateway.errors import TooManyRequests


def test_the_throttle_forgets_after_its_window() -> None:
    moment = 0.0
    limit = throttle.SignInThrottle(clock=lambda: moment)
    for _ in range(throttle.MOST_FAILURES):
        limit.check("a")
        limit.failed("a")
    with pytest.raises(TooManyRequests):
        limit.check("a")
    limit.check("b")
    moment = throttle.WINDOW_SECONDS
    limit.check("a")


def test_the_throttle_remembers_a_bounded_number_of_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttle, "MAX_ADDRESSES", 3)
    limit = throttle.SignInThrottle(clock=lambda: 0.0)
    for address in "abcd":
        for _ in range(throttle.MOST_FAILURES):
            limit.failed(address)
    limit.check("a")
    with pytest.raises(TooManyRequests):
        limit.check("d")

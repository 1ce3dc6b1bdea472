"""Limits on how many requests an API key, a tenant or an address may send, kept in memory by each gateway.

A limit is a number of requests in a window of a minute. The first request opens the window, and it closes a
minute later. Gateways do not share their counts: with three of them, a tenant can send three times as much.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address, ip_address, ip_network

from fastapi import Request
from limits import RateLimitItem, RateLimitItemPerMinute
from limits.storage import Storage
from limits.strategies import FixedWindowRateLimiter

from app.core.settings import Settings
from app.gateway.auth.caller import Caller
from app.gateway.errors import TooManyRequests

MAX_WINDOWS = 10_000


@dataclass(slots=True)
class _Window:
    ends_at: float
    count: int = 0


class WindowCounts(Storage):
    """Counts by key, for the strategies of `limits`. It is used on the event loop alone and has no lock.

    The library's own storage in memory starts a thread every few milliseconds to forget old keys, and
    depends on the wall clock. This one holds `MAX_WINDOWS` keys and forgets the oldest window first.
    """

    STORAGE_SCHEME = None

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock
        self._windows: dict[str, _Window] = {}

    @property
    def base_exceptions(self) -> tuple[type[Exception], ...]:
        """No access to this storage fails."""
        return ()

    def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        """Add to the count of a key, and return it. Open a new window if there is none."""
        window = self._open_window(key)
        if window is None:
            while len(self._windows) >= MAX_WINDOWS:
                del self._windows[next(iter(self._windows))]
            window = self._windows[key] = _Window(self._clock() + expiry)
        window.count += amount
        return window.count

    def get(self, key: str) -> int:
        """Return the count of a key."""
        window = self._open_window(key)
        return window.count if window else 0

    def get_expiry(self, key: str) -> float:
        """Return when the window of a key closes."""
        window = self._open_window(key)
        return window.ends_at if window else self._clock()

    def check(self) -> bool:
        """Return that the storage works."""
        return True

    def reset(self) -> int:
        """Forget everything, and return how many keys there were."""
        forgotten = len(self._windows)
        self._windows.clear()
        return forgotten

    def clear(self, key: str) -> None:
        """Forget a key."""
        self._windows.pop(key, None)

    def _open_window(self, key: str) -> _Window | None:
        window = self._windows.get(key)
        if window is not None and window.ends_at <= self._clock():
            del self._windows[key]
            return None
        return window


class _PerMinute(RateLimitItemPerMinute):
    """A number of requests per minute, counted under plain names.

    Each limit has a storage of its own. Combining the name with that of the limit would take longer than
    counting.
    """

    def key_for(self, *identifiers: bytes | str | float) -> str:
        (who,) = identifiers
        return str(who)


class RateLimit:
    """At most `amount` requests per minute from each of those it counts. 0: no limit."""

    def __init__(self, name: str, amount: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._item = _PerMinute(amount) if amount else None
        self._name, self._clock = name, clock
        self._limiter = FixedWindowRateLimiter(WindowCounts(clock))

    def hit(self, who: str) -> None:
        """Count a request of `who`, whether or not it is within the limit."""
        if self._item is not None:
            self._limiter.hit(self._item, who)

    def check(self, who: str, message: str) -> None:
        """Raise `TooManyRequests` if `who` has no request left. It is not counted."""
        if self._item is not None and not self._limiter.test(self._item, who):
            raise self._refusal(self._item, who, message)

    def admit(self, who: str, message: str) -> None:
        """Count a request of `who`. Raise `TooManyRequests` if it exceeds the limit."""
        if self._item is not None and not self._limiter.hit(self._item, who):
            raise self._refusal(self._item, who, message)

    def _refusal(self, item: RateLimitItem, who: str, message: str) -> TooManyRequests:
        """Return the error with the header fields of draft-ietf-httpapi-ratelimit-headers."""
        reset_at, left = self._limiter.get_window_stats(item, who)
        wait = max(1, math.ceil(reset_at - self._clock()))
        return TooManyRequests(
            f"{message} Try again in {wait} second{'' if wait == 1 else 's'}.",
            headers={
                "Retry-After": str(wait),
                "RateLimit-Policy": f'"{self._name}";q={item.amount};w={item.get_expiry()}',
                "RateLimit": f'"{self._name}";r={left};t={wait}',
            },
        )


def address_of(request: Request) -> str:
    """Return where a request comes from: an IPv4 address, or the network of an IPv6 address (/64).

    Whoever has an IPv6 address usually has the whole network.
    """
    host = request.client.host if request.client else ""
    try:
        address = ip_address(host)
    except ValueError:  # a Unix socket, or a test
        return host
    if isinstance(address, IPv4Address):
        return host
    return str(address.ipv4_mapped or ip_network((address, 64), strict=False))


class RequestRates:
    """The limits on requests: of each API key, of a tenant as a whole, and of addresses without a key."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._key = RateLimit("key", settings.requests_per_minute_per_key, clock)
        self._tenant = RateLimit("tenant", settings.requests_per_minute_per_tenant, clock)
        self._address = RateLimit("address", settings.public_requests_per_minute_per_address, clock)

    def admit(self, caller: Caller) -> None:
        """Count a request of the caller. Raise `TooManyRequests` if its key or its tenant sent too many.

        What a key sends beyond its own limit does not count for the tenant.
        """
        if caller.key_id is not None:
            self._key.admit(caller.key_id.hex, "This API key has sent too many requests.")
        self._tenant.admit(caller.tenant_id.hex, "Your tenant has sent too many requests.")

    def admit_stranger(self, address: str) -> None:
        """Count a request without an API key. Raise `TooManyRequests` if its address sent too many."""
        self._address.admit(address, "Your address has sent too many requests without an API key.")

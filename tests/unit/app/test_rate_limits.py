"""Limits on the requests of a key and of a tenant."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from fastapi import Request

import bench
from app.core.settings import Settings
from app.gateway.auth.caller import Caller
from app.gateway.errors import TooManyRequests
from app.gateway.rate_limits import RequestRates, address_of
from lethe.certificate.audit_log import Actor

TENANT, OTHER = UUID(int=1), UUID(int=2)


def caller(key: int | None, tenant: UUID = TENANT) -> Caller:
    key_id = None if key is None else UUID(int=key)
    return Caller(tenant, key_id, frozenset(), Actor(kind="api-key", id="k", name="k"))


class Gateway:
    """The limits of a gateway whose clock the test moves: two requests per key, three per tenant."""

    def __init__(self, per_key: int = 2, per_tenant: int = 3) -> None:
        self.moment = 0.0
        settings = Settings(requests_per_minute_per_key=per_key, requests_per_minute_per_tenant=per_tenant)
        self.rates = RequestRates(settings, clock=lambda: self.moment)

    def refused(self, who: Caller) -> TooManyRequests | None:
        try:
            self.rates.admit(who)
        except TooManyRequests as problem:
            return problem
        return None


def test_a_key_has_to_wait_until_its_minute_is_over() -> None:
    gateway = Gateway()
    assert not gateway.refused(caller(1))
    gateway.moment = 20.5
    assert not gateway.refused(caller(1))
    refusal = gateway.refused(caller(1))
    assert refusal is not None
    assert refusal.headers == {
        "Retry-After": "40",
        "RateLimit-Policy": '"key";q=2;w=60',
        "RateLimit": '"key";r=0;t=40',
    }
    gateway.moment = 59.9
    assert gateway.refused(caller(1))
    gateway.moment = 60.0
    assert not gateway.refused(caller(1))


def test_the_keys_and_people_of_a_tenant_share_a_limit_and_other_tenants_have_their_own() -> None:
    gateway = Gateway()
    assert not any(gateway.refused(caller(key)) for key in (1, 2, None))
    refusal = gateway.refused(caller(3))
    assert refusal is not None
    assert refusal.headers["RateLimit-Policy"] == '"tenant";q=3;w=60'
    assert not gateway.refused(caller(4, OTHER))


def test_what_a_key_sends_beyond_its_limit_does_not_use_up_the_limit_of_its_tenant() -> None:
    gateway = Gateway()
    assert [bool(gateway.refused(caller(1))) for _ in range(5)] == [False, False, True, True, True]
    assert not gateway.refused(caller(2))


def test_a_limit_of_zero_is_no_limit() -> None:
    gateway = Gateway(0, 0)
    assert not any(gateway.refused(caller(1)) for _ in range(50))


def test_by_default_a_key_gets_a_quarter_of_a_gateway_and_a_tenant_half() -> None:
    """Less than what the slowest benchmark of a gateway recorded, so that others are answered too."""
    measured = json.loads((Path(bench.__file__).parent / "results/gateway.json").read_text())
    settings, per_minute = Settings(), 60 * min(_rates(measured))
    assert 100 * 60 < settings.requests_per_minute_per_key < per_minute / 4
    assert settings.requests_per_minute_per_key < settings.requests_per_minute_per_tenant < per_minute / 2


def _rates(measured: Any) -> Iterator[float]:
    """Yield the requests per second that the real gateway recorded, for each database and load."""
    if isinstance(measured, dict):
        if "requests_per_second" in measured:
            yield measured["requests_per_second"]["real"]
        for inner in measured.values():
            yield from _rates(inner)


def test_strangers_are_counted_by_their_address() -> None:
    rates = RequestRates(Settings(public_requests_per_minute_per_address=1), clock=lambda: 0.0)
    rates.admit_stranger("192.0.2.1")
    rates.admit_stranger("192.0.2.2")
    with pytest.raises(TooManyRequests) as refusal:
        rates.admit_stranger("192.0.2.1")
    assert refusal.value.headers["RateLimit-Policy"] == '"address";q=1;w=60'


@pytest.mark.parametrize(
    ("host", "counted_as"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("testclient", "testclient"),
    ],
)
def test_an_ipv6_network_counts_as_one_address(host: str, counted_as: str) -> None:
    assert address_of(Request({"type": "http", "client": (host, 1234)})) == counted_as

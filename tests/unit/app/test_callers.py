"""The cache of callers: one look-up for all requests that wait for the same caller."""

import asyncio
from threading import Event
from uuid import uuid4

import pytest

from app.gateway.auth.caller import Caller, CallerCache
from lethe.certificate.audit_log import Actor

CALLER = Caller(uuid4(), uuid4(), frozenset({"admin"}), Actor(kind="api-key", id="k", name="k"))


class LookUps:
    """Look-ups that end when the test says so."""

    def __init__(self) -> None:
        self.credentials: list[str] = []
        self.may_end = Event()

    def __call__(self, credentials: str) -> Caller | None:
        self.credentials.append(credentials)
        assert self.may_end.wait(60)
        return CALLER


def test_requests_with_the_same_key_wait_for_one_look_up() -> None:
    callers, look_ups = CallerCache(), LookUps()

    async def run() -> None:
        waiting = [callers.look_up("a", look_ups) for _ in range(20)] + [callers.look_up("b", look_ups)]
        look_ups.may_end.set()
        assert await asyncio.gather(*waiting) == [CALLER] * 21

    asyncio.run(run())
    assert sorted(look_ups.credentials) == ["a", "b"]
    assert callers.get("a") == CALLER


def test_a_request_that_gives_up_does_not_end_the_look_up_of_others() -> None:
    callers, look_ups = CallerCache(), LookUps()

    async def run() -> Caller | None:
        impatient, patient = callers.look_up("a", look_ups), callers.look_up("a", look_ups)
        impatient.cancel()
        look_ups.may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await impatient
        return await patient

    assert asyncio.run(run()) == CALLER


def test_a_look_up_that_began_before_its_key_was_revoked_is_not_cached() -> None:
    callers, look_ups = CallerCache(), LookUps()

    async def run() -> None:
        waiting = callers.look_up("a", look_ups)
        assert CALLER.key_id is not None
        callers.forget(CALLER.key_id)
        later = callers.look_up("a", lambda _: None)  # which does not join the first
        look_ups.may_end.set()
        assert (await waiting, await later) == (CALLER, None)

    asyncio.run(run())
    assert callers.get("a") is None

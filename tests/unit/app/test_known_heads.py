"""The heads of audit logs that a gateway remembers between groups of requests."""

from uuid import uuid4

import pytest

from app.gateway.erasures.single_statement import SHARED_SECONDS, KnownHeads


def test_a_head_that_was_wrong_is_not_relied_on_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("app.gateway.erasures.single_statement.time.monotonic", lambda: clock[0])
    one, two = uuid4(), uuid4()
    heads = KnownHeads()
    heads.learn([{"tenant_id": tenant, "sequence": 4, "hash": b"h"} for tenant in (one, two)])
    heads.forget([one])
    heads.learn([{"tenant_id": one, "sequence": 5, "hash": b"i"}])
    assert heads.of([one, two]) is None
    assert heads.of([two]) == {two: (5, b"h")}
    clock[0] = SHARED_SECONDS
    assert heads.of([one]) == {one: (6, b"i")}

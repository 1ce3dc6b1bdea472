import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.clock import new_id
from app.gateway.erasures.deadlines import months_later
from tests import eventually

moments = st.datetimes(datetime(2000, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001


def test_ids_are_version_7_and_grow_with_time() -> None:
    first = new_id()
    eventually(lambda: time.time_ns() // 10**6 > first.int >> 80, every=0.001)
    second = new_id()
    assert (first.version, first.variant) == (7, "specified in RFC 4122")
    assert first < second
    assert abs((first.int >> 80) / 1000 - time.time()) < 600


def test_ids_grow_within_a_millisecond() -> None:
    ids = [new_id() for _ in range(2000)]
    assert ids == sorted(set(ids))
    assert {(made.version, made.variant) for made in ids} == {(7, "specified in RFC 4122")}


def test_ids_grow_when_the_clock_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before = new_id()
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    assert before < new_id() < new_id()


@given(moments, st.integers(1, 24))
def test_a_month_later_is_the_same_day_or_the_last_of_the_month(start: datetime, months: int) -> None:
    later = months_later(start, months)
    assert (later.year * 12 + later.month) - (start.year * 12 + start.month) == months
    assert later.time() == start.time()
    assert later.day == start.day or (later.day < start.day and (later + timedelta(days=1)).day == 1)


def test_leap_years() -> None:
    assert months_later(datetime(2028, 1, 31, tzinfo=UTC), 1) == datetime(2028, 2, 29, tzinfo=UTC)
    assert months_later(datetime(2027, 12, 31, tzinfo=UTC), 1) == datetime(2028, 1, 31, tzinfo=UTC)

import time
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from app.clock import new_id
from app.erasures.deadlines import months_later

moments = st.datetimes(datetime(2000, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001


def test_ids_are_version_7_and_grow_with_time() -> None:
    first = new_id()
    time.sleep(0.002)
    second = new_id()
    assert (first.version, first.variant) == (7, "specified in RFC 4122")
    assert first < second
    assert abs((first.int >> 80) / 1000 - time.time()) < 5


@given(moments, st.integers(1, 24))
def test_a_month_later_is_the_same_day_or_the_last_of_the_month(start: datetime, months: int) -> None:
    later = months_later(start, months)
    assert (later.year * 12 + later.month) - (start.year * 12 + start.month) == months
    assert later.time() == start.time()
    assert later.day == start.day or (later.day < start.day and (later + timedelta(days=1)).day == 1)


def test_leap_years() -> None:
    assert months_later(datetime(2028, 1, 31, tzinfo=UTC), 1) == datetime(2028, 2, 29, tzinfo=UTC)
    assert months_later(datetime(2027, 12, 31, tzinfo=UTC), 1) == datetime(2028, 1, 31, tzinfo=UTC)

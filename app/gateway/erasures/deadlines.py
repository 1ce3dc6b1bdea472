"""Legal deadlines of erasure requests."""

import calendar
from datetime import datetime, timedelta


def months_later(start: datetime, months: int) -> datetime:
    """Return the same day `months` later, or the last day of that month if it has no such day.

    The GDPR (art. 12(3)) gives one calendar month to answer a request, extendable once by two.

    >>> from datetime import UTC
    >>> months_later(datetime(2027, 1, 31, 9, tzinfo=UTC), 1).isoformat()
    '2027-02-28T09:00:00+00:00'
    """
    year, month = divmod(start.year * 12 + start.month - 1 + months, 12)
    last = calendar.monthrange(year, month + 1)[1]
    return start.replace(year=year, month=month + 1, day=min(start.day, last))


def days_late(due: datetime, ended: datetime | None) -> int:
    """Return how many days after its deadline a request ended. A day that has begun counts.

    >>> from datetime import UTC
    >>> due = datetime(2027, 1, 5, 9, tzinfo=UTC)
    >>> days_late(due, due), days_late(due, due + timedelta(hours=1)), days_late(due, due + timedelta(days=3))
    (0, 1, 3)
    """
    return 0 if ended is None else max(-((due - ended) // timedelta(days=1)), 0)

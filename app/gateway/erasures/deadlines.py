"""When a request must be answered: one calendar month (GDPR art. 12(3)), extendable once by two."""

import calendar
from datetime import datetime


def months_later(start: datetime, months: int) -> datetime:
    """The same day of a later month, or its last day where that day does not exist.

    >>> from datetime import UTC
    >>> months_later(datetime(2027, 1, 31, 9, tzinfo=UTC), 1).isoformat()
    '2027-02-28T09:00:00+00:00'
    """
    year, month = divmod(start.year * 12 + start.month - 1 + months, 12)
    last = calendar.monthrange(year, month + 1)[1]
    return start.replace(year=year, month=month + 1, day=min(start.day, last))

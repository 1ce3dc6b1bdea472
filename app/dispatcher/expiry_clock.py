"""The time by which things are deleted for good, such as the salts of expired receipts.

A wall clock that is set forward by mistake must not destroy anything: setting it back brings nothing back. So
this clock follows the wall clock only as far as two other clocks agree: this process's monotonic clock, which
nobody can set, and the database's own clock. It remembers its last reading in SQL, because a process that has
just started does not know how long it was away.

After a jump forward it goes on from the time before the jump. If the wall clock then runs steadily for a day,
and the database agrees, the jump is taken to be right: a machine that was switched off, or whose clock was
behind, jumps like this too.
"""

from collections.abc import Callable
from datetime import datetime, timedelta

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.core import logging
from app.db.deployment import Deployment
from app.db.session import Database
from app.db.types import UtcDateTime

log = logging.get_logger("dispatcher")
TOLERANCE = timedelta(minutes=5)
MAY_BE_AWAY = timedelta(hours=1)
"""How long no dispatcher may have acted before the time that has passed needs to be confirmed."""
CONFIRMED_AFTER = timedelta(days=1)
REMEMBER_EVERY = timedelta(minutes=1)


def database_time(session: Session) -> datetime:
    """Return the time of the database's own clock."""
    return session.execute(select(func.current_timestamp(type_=UtcDateTime()))).scalar_one()


class ExpiryClock:
    """A clock that does not jump forward until the jump is confirmed."""

    def __init__(
        self,
        database: Database,
        clock: Callable[[], datetime],
        steady: Callable[[], float],
        database_clock: Callable[[Session], datetime] = database_time,
    ) -> None:
        """Prepare to read. `steady` returns monotonic seconds."""
        self._database, self._clock, self._database_clock = database, clock, database_clock
        self._steady = steady
        self._base: tuple[datetime, timedelta] | None = None  # a time that was right, and the uptime then
        self._jump: tuple[timedelta, timedelta] | None = None  # how far the clock jumped, and since when
        self._remembered_at: timedelta | None = None
        self._disagrees = False

    def read(self) -> datetime:
        """Return a time that is not later than any of the three clocks allows."""
        with self._database.reading() as session:
            row = session.get(Deployment, 1)
            known, database = None if row is None else row.expiry_clock_at, self._database_clock(session)
        wall, uptime = self._clock(), timedelta(seconds=self._steady())
        if self._base is None:
            was_away = known is not None and wall - known > MAY_BE_AWAY
            self._base = (known if known is not None and was_away else wall, uptime)
        time = min(self._follow(wall, uptime), database)
        self._note_disagreement(wall - database > TOLERANCE)
        self._remember(time, uptime)
        return time

    def _follow(self, wall: datetime, uptime: timedelta) -> datetime:
        """Return the wall clock's time or, after a jump forward, the time by the steady clock."""
        assert self._base is not None
        expected = self._base[0] + (uptime - self._base[1])
        ahead = wall - expected
        if ahead <= TOLERANCE:
            if self._jump is not None:
                log.info("the clock is right again")
            self._jump = None
            if ahead < -TOLERANCE or uptime - self._base[1] >= MAY_BE_AWAY:
                self._base = (wall, uptime)
            return wall
        if self._jump is None or abs(ahead - self._jump[0]) > TOLERANCE:
            if self._jump is None:
                log.warning(
                    "the clock jumped forward; nothing expires by it until it has run steadily for a day"
                )
            self._jump = (ahead, uptime)
        if uptime - self._jump[1] < CONFIRMED_AFTER:
            return expected
        log.info("the clock has run steadily since it jumped forward; it is followed again")
        self._base, self._jump = (wall, uptime), None
        return wall

    def _note_disagreement(self, disagrees: bool) -> None:
        if disagrees and not self._disagrees:
            log.warning("the database's clock is behind this machine's; nothing expires before its time")
        self._disagrees = disagrees

    def _remember(self, time: datetime, uptime: timedelta) -> None:
        """Write the reading to SQL, about once a minute."""
        if self._remembered_at is not None and uptime - self._remembered_at < REMEMBER_EVERY:
            return
        self._remembered_at = uptime
        with self._database.writing() as session:
            row = session.get(Deployment, 1)
            if row is not None:
                row.expiry_clock_at = time

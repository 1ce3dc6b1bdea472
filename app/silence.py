"""For how long the attempts under way have not been heard of."""

import time
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import NamedTuple
from uuid import UUID


class Beat(NamedTuple):
    """The newest heartbeat of one attempt, as SQL has it."""

    job_id: UUID
    token: UUID
    at: datetime


class Silence:
    """Measures how long each heartbeat has stayed the same, on this process's steady clock.

    The time written in a heartbeat is never compared with ours: machines disagree about the time of day, and
    their clocks jump. That a heartbeat has not changed is true on every clock.
    """

    def __init__(self, steady: Callable[[], float] = time.monotonic) -> None:
        self._steady = steady
        self._looked_at = steady()
        self._silent: dict[Beat, float] = {}

    def longer_than(self, seconds: float, beats: Iterable[Beat]) -> list[Beat]:
        """Those that have stayed the newest for so long; it must be told all of them, at every look."""
        moment = self._steady()
        # Who was stopped or held up has not listened meanwhile: one look never counts for more than a third.
        passed = min(moment - self._looked_at, seconds / 3)
        self._looked_at = moment
        self._silent = {beat: self._silent.get(beat, -passed) + passed for beat in beats}
        return [beat for beat, silent in self._silent.items() if silent >= seconds]

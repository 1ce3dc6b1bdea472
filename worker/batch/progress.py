"""How far a solve has come, and how long it may still take: told from what it has done so far."""

import math
from dataclasses import dataclass, field


@dataclass
class Estimate:
    """Newton's steps gain digits: log(distance) falls steadily, from the first one seen to log(target).

    Near the end they gain them faster, so the time left is an estimate from above rather than below. Percent
    is whole, and the time left follows from it alone: neither tells more of the data than the distance shown.
    """

    target: float
    limit: float
    """Seconds after which the solve ends either way."""
    _first: tuple[float, float] | None = field(default=None)
    _percent: int | None = field(default=None)

    def after(self, distance: float, seconds: float) -> dict[str, float | int | None]:
        """Percent never falls, also where a step was a bad one; None: nothing can be said yet.

        >>> estimate = Estimate(target=1e-6, limit=3600.0)
        >>> estimate.after(1.0, 2.0)
        {'percent': 0, 'eta_seconds': None}
        >>> estimate.after(1e-3, 5.0)
        {'percent': 50, 'eta_seconds': 3.0}
        """
        if math.isfinite(distance) and distance >= 0:
            self._first = self._first or (distance, seconds)
            self._percent = max(self._percent or 0, self._fallen(distance))
        return {"percent": self._percent, "eta_seconds": self._left(seconds)}

    def _fallen(self, distance: float) -> int:
        assert self._first is not None
        if distance <= self.target:
            return 100
        start = math.log(max(self._first[0], self.target))
        way = start - math.log(self.target)
        if way <= 0:  # the first one seen was within the target, this one is not
            return 0
        return min(max(math.floor(100 * (start - math.log(distance)) / way), 0), 99)

    def _left(self, seconds: float) -> float | None:
        if not self._percent or self._first is None:
            return None
        spent = max(seconds - self._first[1], 0.0)
        left = spent * (100 - self._percent) / self._percent
        return round(max(min(left, self.limit - seconds), 0.0), 1)

"""Progress of a solve: how far it has come, and how long it may still take."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from lethe.policy import Method
from worker.context import JobContext
from worker.engine.trust_region import Step


def report_steps(context: JobContext, mechanism: Method) -> Callable[[Step], None]:
    """Return a callback that records each step of the solver as progress of the batch."""
    policy = context.manifest.policy
    estimate = ProgressEstimate(policy.target_distance, policy.time_limit_seconds)

    def report(step: Step) -> None:
        remaining = estimate.after(step.distance, step.seconds)
        context.progress(
            {"mechanism": mechanism, **_figures(step), "target": policy.target_distance, **remaining}
        )

    return report


def _figures(step: Step) -> dict[str, float | int | bool | None]:
    """Return a step's figures for the model's own team, to two digits. They are deleted on completion."""
    return {
        "step": step.index,
        "gradient_norm": float(f"{step.gradient_norm:.1e}"),
        "distance": float(f"{step.distance:.1e}") if math.isfinite(step.distance) else None,
        "products": step.products,
        "passes": round(step.passes, 3),
        "seconds": round(step.seconds, 3),
    }


@dataclass
class ProgressEstimate:
    """Estimates percent done and time left from the distances that a solve has reached so far.

    Newton's method gains digits steadily, so progress is measured in log(distance), from the first distance
    seen down to the target. Near the end it gains them faster, so the time left tends to be overestimated.
    Percent is a whole number and the time left follows from it, so neither reveals more about the data than
    the distance that is shown anyway.
    """

    target: float
    limit: float
    """Seconds after which the solve ends in any case."""
    _first: tuple[float, float] | None = field(default=None)
    _percent: int | None = field(default=None)

    def after(self, distance: float, seconds: float) -> dict[str, float | int | None]:
        """Return percent done and seconds left after a step, or None for what is not known yet.

        Percent never falls, even if a step increased the distance.

        >>> estimate = ProgressEstimate(target=1e-6, limit=3600.0)
        >>> estimate.after(1.0, 2.0)
        {'percent': 0, 'eta_seconds': None}
        >>> estimate.after(1e-3, 5.0)
        {'percent': 50, 'eta_seconds': 3.0}
        """
        if math.isfinite(distance) and distance >= 0:
            self._first = self._first or (distance, seconds)
            self._percent = max(self._percent or 0, self._percent_at(distance))
        return {"percent": self._percent, "eta_seconds": self._seconds_left(seconds)}

    def _percent_at(self, distance: float) -> int:
        assert self._first is not None
        if distance <= self.target:
            return 100
        start = math.log(max(self._first[0], self.target))
        total = start - math.log(self.target)
        if total <= 0:  # the first distance was within the target and this one is not
            return 0
        return min(max(math.floor(100 * (start - math.log(distance)) / total), 0), 99)

    def _seconds_left(self, seconds: float) -> float | None:
        if not self._percent or self._first is None:
            return None
        spent = max(seconds - self._first[1], 0.0)
        left = spent * (100 - self._percent) / self._percent
        return round(max(min(left, self.limit - seconds), 0.0), 1)

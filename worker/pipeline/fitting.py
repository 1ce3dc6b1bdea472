"""One way to fit, for convex families and networks alike."""

import math
from collections.abc import Callable

from torch import Tensor

from worker.engine.networks.objective import NetworkObjective
from worker.engine.trust_region import Solution, SolverSettings, Step, minimise
from worker.loading.families import FamilyObjective

# Of λ: how far below it the loop takes a network's curvature to be, until that is measured.
_CAUTION = 0.25


def fit(
    objective: FamilyObjective,
    start: Tensor,
    *,
    target: float,
    settings: SolverSettings,
    progress: Callable[[Step], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Solution:
    """From `start` (d,) to within `target`; how curved a network is, is guessed from λ."""
    working = _CAUTION * objective.lam if isinstance(objective, NetworkObjective) else None
    return minimise(
        objective,
        start,
        target=target,
        settings=settings,
        progress=progress,
        cancelled=cancelled,
        working_floor=working,
    )


def estimated_distance(objective: FamilyObjective, solution: Solution) -> float:
    """B1 where the floor is proven; for a network the same with the working floor: an estimate."""
    if math.isfinite(solution.distance) or not isinstance(objective, NetworkObjective):
        return solution.distance
    return (solution.gradient_norm + solution.rounding) / (_CAUTION * objective.lam)

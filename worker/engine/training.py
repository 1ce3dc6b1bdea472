"""Learning A(S): the minimiser from the anchor, by the same loop; first training and retraining alike."""

from collections.abc import Callable

from worker.engine.objective import Objective
from worker.engine.subproblem import Subproblem, steihaug
from worker.engine.trust_region import Solution, SolverSettings, Step, minimise


def train(
    objective: Objective,
    *,
    target: float,
    settings: SolverSettings | None = None,
    subproblem: Subproblem = steihaug,
    progress: Callable[[Step], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
    working_floor: float | None = None,
) -> Solution:
    """A function of the rows, λ and the anchor alone: nothing of an earlier model enters."""
    return minimise(
        objective,
        objective.anchor,
        target=target,
        settings=settings,
        subproblem=subproblem,
        progress=progress,
        cancelled=cancelled,
        working_floor=working_floor,
    )

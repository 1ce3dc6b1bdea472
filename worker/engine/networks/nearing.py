"""B2 by rounds: measure curvature where a solve ended; where its gradient is too large for that, go nearer.

Each measurement is an event of its own with its own share of p: a half, a quarter, an eighth.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from worker.engine import noise
from worker.engine.networks.kantorovich import Kantorovich, Verdict, certify
from worker.engine.networks.lanczos import Gaussian
from worker.engine.networks.objective import Network, NetworkObjective
from worker.engine.trust_region import Outcome, Solution, SolverSettings, minimise

_ROUNDS = 3
_SHORT = (Verdict.TOO_FAR, Verdict.TOO_STEEP)  # what a smaller gradient mends
ENOUGH = (Verdict.CERTIFIED, Verdict.ESTIMATED)


@dataclass(frozen=True, slots=True)
class Neared:
    """The solves made on the way; `found` is of `w`, unless the last of them did not get where it should."""

    w: Tensor  # (d,)
    found: Kantorovich
    solves: tuple[Solution, ...]
    passes: float  # of measuring, over all rounds
    seconds: float


def certify_nearer(
    objective: NetworkObjective,
    network: Network,
    w: Tensor,
    *,
    target: float,
    failure_probability: float,
    settings: SolverSettings,
    budget_products: int = 2000,
    heuristic: bool = False,
    gaussian: Gaussian = noise.draw,
    cancelled: Callable[[], bool] | None = None,
) -> Neared:
    """Certify at `w` (d,), or at a point nearer the minimiser; spends less than `failure_probability`."""
    solves: list[Solution] = []
    passes = seconds = 0.0
    for rounds in range(1, _ROUNDS + 1):
        found = certify(
            objective,
            network,
            w,
            target=target,
            failure_probability=failure_probability / 2**rounds,
            budget_products=budget_products,
            heuristic=heuristic,
            gaussian=gaussian,
            cancelled=cancelled,
        )
        passes, seconds = passes + found.passes, seconds + found.seconds
        if found.verdict not in _SHORT or rounds == _ROUNDS:
            break
        solution = minimise(
            objective,
            w,
            # Δ ≤ Δ* and h < 1/2, each with room
            target=min(0.9 * target, 0.4 * found.working_floor / found.lipschitz),
            settings=settings,
            cancelled=cancelled,
            working_floor=found.working_floor,
        )
        solves.append(solution)
        w = solution.w
        if solution.outcome is not Outcome.REACHED:
            break
    return Neared(w, found, tuple(solves), passes, seconds)

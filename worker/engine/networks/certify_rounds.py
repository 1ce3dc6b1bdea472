"""B2 by rounds: where the gradient is too large for the curvature there, go nearer; then measure and certify.

How near is near enough is first read off a sample of the rows. Where the measurement over all of them asks
for more, it is repeated; each is an event of its own with its own share of p: a half, a quarter, an eighth.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from worker.engine import noise
from worker.engine.networks.architectures import AllCnn, Mlp
from worker.engine.networks.curvature import Probe, probe
from worker.engine.networks.kantorovich import Kantorovich, Verdict, certify, guessed_lipschitz
from worker.engine.networks.lanczos import Gaussian
from worker.engine.networks.objective import Network, NetworkObjective
from worker.engine.objective import CertifiedGradient
from worker.engine.trust_region import Outcome, Solution, SolverSettings, minimise

_ROUNDS = 3
_WANTED_H, _LARGEST_H = 0.1, 0.4
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
    gradient: CertifiedGradient | None = None,
    budget_products: int = 2000,
    heuristic: bool = False,
    gaussian: Gaussian = noise.draw,
    cancelled: Callable[[], bool] | None = None,
) -> Neared:
    """Certify at `w` (d,), or at a point nearer the minimiser; spends less than `failure_probability`.

    `gradient` is that of a pass over all rows at `w` with a bound on its rounding, if one was made.
    """
    path = _Path(objective, w, gradient, target, settings, cancelled)
    seen = path.look(network, gaussian) if isinstance(network, Mlp | AllCnn) else None
    for rounds in range(1, _ROUNDS + 1):
        found = certify(
            objective,
            network,
            path.w,
            target=target,
            failure_probability=failure_probability / 2**rounds,
            budget_products=budget_products,
            gradient=path.gradient,
            probed=seen,
            heuristic=heuristic,
            gaussian=gaussian,
            cancelled=cancelled,
        )
        path.passes, path.seconds = path.passes + found.passes, path.seconds + found.seconds
        if found.verdict not in _SHORT or rounds == _ROUNDS:
            break
        if not path.nearer(floor=found.working_floor, lipschitz=found.lipschitz):
            break
    return Neared(path.w, found, tuple(path.solves), path.passes, path.seconds)


@dataclass(slots=True)
class _Path:
    """Where we are, what is known of the gradient there, and what it took."""

    objective: NetworkObjective
    w: Tensor
    gradient: CertifiedGradient | None
    target: float
    settings: SolverSettings
    cancelled: Callable[[], bool] | None
    solves: list[Solution] = field(default_factory=list)
    passes: float = 0.0
    seconds: float = 0.0

    def look(self, network: Mlp | AllCnn, gaussian: Gaussian) -> Probe:
        """Curvature and M on a sample; goes nearer at once if they say that B2 would not hold here."""
        began = time.monotonic()
        seen, guess = probe(self.objective, network, self.w, gaussian=gaussian), 0.0
        self.passes += seen.passes
        if seen.floor > 0:
            bound = guessed_lipschitz(self.objective, network, self.w)
            self.passes, guess = self.passes + bound.passes, bound.value
        self.seconds += time.monotonic() - began
        if 0 < guess < math.inf and self._norm() > 2 * seen.floor * self._within(seen.floor, guess):
            self.nearer(floor=seen.floor, lipschitz=guess)
        return seen

    def nearer(self, *, floor: float, lipschitz: float) -> bool:
        """Solve on; False when the solve did not get where it should."""
        solution = minimise(
            self.objective,
            self.w,
            target=self._within(floor, lipschitz),
            settings=self.settings,
            cancelled=self.cancelled,
            working_floor=floor,
        )
        self.solves.append(solution)
        self.w = solution.w
        self.gradient = None
        if math.isfinite(solution.rounding):  # one that was interrupted may have ended in single precision
            self.gradient = CertifiedGradient(norm=solution.gradient_norm, rounding=solution.rounding)
        return solution.outcome is Outcome.REACHED

    def _within(self, floor: float, lipschitz: float) -> float:
        """A distance at which Δ ≤ Δ* and h < 1/2 hold with room.

        The smaller h, the less curvature has to be proven, √(2h) of what there is, and Lanczos is what costs
        most: so h is taken well below 1/2, as far as the gradient's rounding lets it.
        """
        rounding = self.gradient.rounding if self.gradient else 0.0
        h = min(_LARGEST_H, max(_WANTED_H, 4 * rounding * lipschitz / floor**2))
        return min(0.9 * self.target, h * floor / lipschitz)

    def _norm(self) -> float:
        if self.gradient is None:
            self.passes += 1
            there = self.objective.evaluate(self.w)
            self.gradient = CertifiedGradient(norm=there.norm, rounding=there.rounding)
        return self.gradient.norm

"""Certification of a network by B2 in rounds of solving and measuring.

If the gradient is too large for the curvature at a point, the solver continues to a smaller one before the
measurement. A sample of the rows first estimates how small it must be. If the measurement over all rows then
asks for more, the round is repeated. Each round is an event of its own and spends its own share of p: a half,
a quarter, an eighth.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from worker.engine import noise
from worker.engine.networks.architectures import AllCnn, Mlp
from worker.engine.networks.curvature import Probe, probe
from worker.engine.networks.kantorovich import KantorovichResult, Verdict, certify, estimate_lipschitz
from worker.engine.networks.lanczos import Gaussian
from worker.engine.networks.objective import Network, NetworkObjective
from worker.engine.objective import CertifiedGradient, Evaluation
from worker.engine.sketch import CurvatureSketch
from worker.engine.trust_region import Outcome, Solution, SolverSettings, minimise

_MOST_ROUNDS = 3
_TARGET_H, _LARGEST_H = 0.1, 0.4
_NEEDS_SMALLER_GRADIENT = (Verdict.TOO_FAR, Verdict.TOO_STEEP)  # verdicts that a smaller gradient can fix
ACCEPTED = (Verdict.CERTIFIED, Verdict.ESTIMATED)


@dataclass(frozen=True, slots=True)
class RoundsResult:
    """The point where certification ended, B2 there, and the solves on the way.

    `kantorovich` belongs to `w`, unless the last solve did not reach its target.
    """

    w: Tensor  # (d,)
    kantorovich: KantorovichResult
    solves: tuple[Solution, ...]
    passes: float  # spent on measurements, over all rounds
    seconds: float


def certify_in_rounds(
    objective: NetworkObjective,
    network: Network,
    w: Tensor,
    *,
    target: float,
    failure_probability: float,
    settings: SolverSettings,
    known: Evaluation | None = None,
    budget_products: int = 2000,
    heuristic: bool = False,
    gaussian: Gaussian = noise.draw,
    cancelled: Callable[[], bool] | None = None,
    sketch: CurvatureSketch | None = None,
) -> RoundsResult:
    """Certify B2 at `w` (d,) or at a point closer to the minimiser.

    Spends less than `failure_probability` in all. `known` is the evaluation at `w`, from the last float64
    pass of the solve. With `heuristic`, an estimate is accepted if the network has no
    analytic bound. A `sketch` of the curvature nearby makes further solves faster.
    """
    progress = _Progress(objective, w, _bounded(known), target, settings, cancelled, sketch)
    spectra = progress.probe_sample(network, gaussian) if isinstance(network, Mlp | AllCnn) else None
    for rounds in range(1, _MOST_ROUNDS + 1):
        result = certify(
            objective,
            network,
            progress.w,
            target=target,
            failure_probability=failure_probability / 2**rounds,
            budget_products=budget_products,
            gradient=progress.gradient,
            probed=spectra,
            guessed=progress.lipschitz if rounds == 1 else None,  # later rounds are further away
            heuristic=heuristic,
            gaussian=gaussian,
            cancelled=cancelled,
        )
        progress.passes, progress.seconds = progress.passes + result.passes, progress.seconds + result.seconds
        if result.verdict not in _NEEDS_SMALLER_GRADIENT or rounds == _MOST_ROUNDS:
            break
        if not progress.solve_further(floor=result.working_floor, lipschitz=result.lipschitz):
            break
    return RoundsResult(progress.w, result, tuple(progress.solves), progress.passes, progress.seconds)


@dataclass(slots=True)
class _Progress:
    """The current point, its gradient if known, and the cost so far."""

    objective: NetworkObjective
    w: Tensor
    known: Evaluation | None
    target: float
    settings: SolverSettings
    cancelled: Callable[[], bool] | None
    sketch: CurvatureSketch | None
    lipschitz: float | None = None  # M, estimated on a sample
    solves: list[Solution] = field(default_factory=list)
    passes: float = 0.0
    seconds: float = 0.0

    def probe_sample(self, network: Mlp | AllCnn, gaussian: Gaussian) -> Probe:
        """Estimate curvature and M on a sample, and solve further at once if B2 would fail at this point."""
        began = time.monotonic()
        spectra, guess = probe(self.objective, network, self.w, gaussian=gaussian), 0.0
        self.passes += spectra.passes
        if spectra.floor > 0:
            bound = estimate_lipschitz(self.objective, network, self.w)
            self.passes, guess = self.passes + bound.passes, bound.value
            self.lipschitz = guess
        self.seconds += time.monotonic() - began
        if 0 < guess < math.inf and self._gradient_norm() > 2 * spectra.floor * self._target_distance(
            spectra.floor, guess
        ):
            self.solve_further(floor=spectra.floor, lipschitz=guess)
        return spectra

    def solve_further(self, *, floor: float, lipschitz: float) -> bool:
        """Continue the solve to a smaller gradient. Returns False if the solve did not reach it."""
        solution = minimise(
            self.objective,
            self.w,
            target=self._target_distance(floor, lipschitz),
            settings=self.settings,
            cancelled=self.cancelled,
            working_floor=floor,
            known=self.known,
            sketch=self.sketch,
        )
        self.solves.append(solution)
        self.w = solution.w
        self.known = _bounded(solution.evaluation)
        return solution.outcome is Outcome.REACHED

    def _target_distance(self, floor: float, lipschitz: float) -> float:
        """Return a distance at which Δ ≤ Δ* and h < 1/2 hold with room to spare.

        Only √(2h) of the available curvature has to be proven, and Lanczos is the largest cost. So h is set
        well below 1/2, as far as the rounding of the gradient permits.
        """
        rounding = self.known.rounding if self.known else 0.0
        h = min(_LARGEST_H, max(_TARGET_H, 4 * rounding * lipschitz / floor**2))
        return min(0.9 * self.target, h * floor / lipschitz)

    def _gradient_norm(self) -> float:
        if self.known is None:
            self.passes += 1
            self.known = self.objective.evaluate(self.w)
        return self.known.norm

    @property
    def gradient(self) -> CertifiedGradient | None:
        """The gradient at the current point, if it is known."""
        if self.known is None:
            return None
        return CertifiedGradient(norm=self.known.norm, rounding=self.known.rounding)


def _bounded(evaluation: Evaluation | None) -> Evaluation | None:
    """Return the evaluation, unless its rounding error is not bounded, as after an interrupted solve."""
    return evaluation if evaluation is not None and math.isfinite(evaluation.rounding) else None

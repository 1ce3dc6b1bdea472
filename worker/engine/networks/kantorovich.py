"""Certification by B2: is w within Δ of a strict local minimiser, and if not, what is missing?

Newton–Kantorovich at w: let μ₀ ≤ λ_min(∇²f(w)), let ∇²f be M-Lipschitz on B(w, 2G/μ₀) and let h = M·G/μ₀² <
1/2. Then f has exactly one stationary point in that ball. It is a strict minimiser within Δ = 2G/(μ₀·(1 + √(1
- 2h))) of w. docs/maths.md, section 10, has the proof.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal, TypeAlias

from torch import Tensor

from worker.engine import noise
from worker.engine.bounds import kantorovich, kantorovich_distance, needed_floor
from worker.engine.networks.architectures import AllCnn, Mlp
from worker.engine.networks.curvature import CurvatureResult, Probe, curvature_floor
from worker.engine.networks.lanczos import Gaussian
from worker.engine.networks.lipschitz import (
    LipschitzBound,
    hessian_lipschitz,
    product_rounding,
    sampled_lipschitz,
)
from worker.engine.networks.objective import Network, NetworkObjective, subsample
from worker.engine.objective import CertifiedGradient

Source: TypeAlias = Literal["analytic", "sampled"]
_ESTIMATE_ROWS = 512
_FLOOR_MARGIN = 1.01  # on the floor asked of Lanczos


class Verdict(StrEnum):
    """Result of a certification, or the condition that failed."""

    CERTIFIED = "certified distance within target"
    ESTIMATED = "estimate within target: the Hessian's Lipschitz constant is only sampled"
    NO_ANALYTIC_BOUND = "no analytic bound on the third derivative is known for this network"
    NON_FINITE = "the objective, its gradient or the bound on its derivatives is not finite"
    ROUNDING = "rounding of the gradient alone exceeds what the target allows"
    NO_CURVATURE = "no sufficient curvature floor could be certified"
    TOO_STEEP = "h = M·G/μ₀² is not below 1/2: the gradient is still too large for this curvature"
    TOO_FAR = "the certified distance is above the target"
    CANCELLED = "cancelled by the caller"


@dataclass(frozen=True, slots=True)
class KantorovichResult:
    """The measured quantities of B2 and the verdict. `distance` is infinite if nothing is certified.

    `needed` is the μ₀ that would certify the target with this G and M. `source` says whether M is an analytic
    bound or only sampled.
    """

    verdict: Verdict
    target: float
    gradient_norm: float
    rounding: float
    distance: float
    floor: float
    lipschitz: float
    source: Source
    derivation: str
    radius: float
    h: float
    needed: float
    curvature: CurvatureResult | None
    passes: float
    seconds: float

    @property
    def spare(self) -> float:
        """1/2 - h: the margin before uniqueness is lost."""
        return 0.5 - self.h

    @property
    def working_floor(self) -> float:
        """Estimate of λ_min(∇²f), certified or seen on a sample, for a solver that continues from here."""
        return self.floor if self.curvature is None else max(self.floor, self.curvature.probe.floor)

    @property
    def explanation(self) -> str:
        """Which condition failed and by how much, or what holds."""
        gradient = self.gradient_norm + self.rounding
        return (
            f"{self.verdict}: G = {gradient:.3g} (rounding {self.rounding:.3g}), μ₀ = {self.floor:.3g} of"
            f" {self.needed:.3g} needed, M = {self.lipschitz:.3g} ({self.source}) on a ball of"
            f" {self.radius:.3g}, h = {self.h:.3g}, Δ = {self.distance:.3g} against {self.target:.3g}"
        )


def certify(
    objective: NetworkObjective,
    network: Network,
    w: Tensor,
    *,
    target: float,
    failure_probability: float,
    budget_products: int = 2000,
    gradient: CertifiedGradient | None = None,
    probed: Probe | None = None,
    guessed: float | None = None,
    heuristic: bool = False,
    gaussian: Gaussian = noise.draw,
    cancelled: Callable[[], bool] | None = None,
) -> KantorovichResult:
    """Certify B2 at `w` (d,).

    `gradient` is the known gradient at `w`, `probed` a curvature probe at a nearby point, and `guessed` M as
    `estimate_lipschitz` found it there. The call spends
    less than `failure_probability` in all. A second call is a second event and needs its own share. With
    `heuristic`, a network without an analytic bound gets an estimate from a sampled M and a measured rounding
    error.
    """
    attempt = _Attempt(objective, network, w, target, heuristic, gaussian)
    attempt.set_gradient(gradient)
    refusal = attempt.refusal()
    if refusal is not None:
        return attempt.result(refusal)
    attempt.bound_derivatives(guessed)
    if not math.isfinite(attempt.lipschitz):
        return attempt.result(Verdict.NON_FINITE)
    attempt.certify_floor(failure_probability, budget_products, probed, cancelled)
    return attempt.result(attempt.verdict())


def estimate_lipschitz(objective: NetworkObjective, network: Mlp | AllCnn, w: Tensor) -> LipschitzBound:
    """Estimate M at w from a sample of the rows.

    It sets the ball radius and steers the solver, and certifies nothing.
    """
    sample = subsample(objective, network, _ESTIMATE_ROWS)
    bound = hessian_lipschitz(sample, network, w, 0.0)
    return replace(bound, passes=bound.passes * sample.total / objective.total)


class _Attempt:
    """State of one certification. `passes` is its whole cost."""

    def __init__(
        self,
        objective: NetworkObjective,
        network: Network,
        w: Tensor,
        target: float,
        heuristic: bool,
        gaussian: Gaussian,
    ) -> None:
        self.started = time.monotonic()
        self.objective, self.network, self.w, self.target = objective, network, w, target
        self.heuristic, self.gaussian = heuristic, gaussian
        self.passes = 0.0
        self.norm = self.rounding = math.inf
        self.lipschitz, self.radius, self.needed = math.inf, 0.0, math.inf
        self.derivation = ""
        self.product_rounding = 0.0
        self.curvature: CurvatureResult | None = None
        self.analytic = isinstance(network, Mlp | AllCnn)

    @property
    def gradient(self) -> float:
        """G = ‖∇f(w)‖ + e, rounded up."""
        return (self.norm + self.rounding) * (1 + 2**-50)

    @property
    def floor(self) -> float:
        """The certified floor μ₀, or -inf."""
        return -math.inf if self.curvature is None else self.curvature.floor

    def set_gradient(self, known: CertifiedGradient | None) -> None:
        """Use the known gradient, or evaluate it in one pass.

        For a heuristic estimate, measure its rounding error.
        """
        if known is None:
            self.passes += 1
            evaluation = self.objective.evaluate(self.w)
            known = CertifiedGradient(norm=evaluation.norm, rounding=evaluation.rounding)
        self.norm, self.rounding = known.norm, known.rounding
        if not self.analytic and self.heuristic and not math.isfinite(self.rounding):
            self.passes += 2
            self.rounding = self.objective.measured_rounding(self.w)

    def refusal(self) -> Verdict | None:
        """Return a reason not to start, or None."""
        if not self.analytic and not self.heuristic:
            return Verdict.NO_ANALYTIC_BOUND
        return None if math.isfinite(self.gradient) else Verdict.NON_FINITE

    def bound_derivatives(self, guessed: float | None) -> None:
        """Bound M on the largest ball that B2 can use, and derive the floor it needs.

        h < 1/2 means 2G/μ₀ < √(2G/M), and Δ ≥ G/μ₀ means 2G/μ₀ ≤ 2Δ*.
        """
        guess = self._guess() if guessed is None else guessed
        ball = math.sqrt(2 * self.gradient / guess) if guess > 0 else math.inf
        self.radius = max(min(ball, 2 * self.target), 1e-300) * (1 + 2**-50)
        bound = self._derivatives()
        self.lipschitz, self.derivation = bound.value, bound.derivation
        self.passes += bound.passes
        least = needed_floor(gradient=self.gradient, lipschitz=self.lipschitz, target=self.target)
        self.needed = max(_FLOOR_MARGIN * least, 2 * self.gradient / self.radius * (1 + 2**-50))

    def _guess(self) -> float:
        if not isinstance(self.network, Mlp | AllCnn):
            return 0.0
        guess = estimate_lipschitz(self.objective, self.network, self.w)
        self.passes += guess.passes
        return guess.value

    def _derivatives(self) -> LipschitzBound:
        if not isinstance(self.network, Mlp | AllCnn):
            return sampled_lipschitz(self.objective, self.network, self.w, self.radius)
        bound = hessian_lipschitz(self.objective, self.network, self.w, self.radius)
        self.product_rounding = product_rounding(self.objective, self.network, self.w, bound)
        return bound

    def certify_floor(
        self,
        failure_probability: float,
        budget: int,
        probed: Probe | None,
        cancelled: Callable[[], bool] | None,
    ) -> None:
        """Certify the curvature floor by Lanczos."""
        self.curvature = curvature_floor(
            self.objective,
            self.network,
            self.w,
            failure_probability=failure_probability,
            needed=self.needed,
            budget_products=budget,
            rounding=self.product_rounding,
            probed=probed,
            gaussian=self.gaussian,
            cancelled=cancelled,
        )
        self.passes += self.curvature.passes

    def verdict(self) -> Verdict:
        """Return whether B2 holds with the certified floor, or which condition fails."""
        assert self.curvature is not None
        if self.curvature.cancelled:
            return Verdict.CANCELLED
        if self._distance() <= self.target and 2 * self.gradient / self.floor <= self.radius:
            return Verdict.CERTIFIED if self.analytic else Verdict.ESTIMATED
        return self._missing(max(self.floor, self.curvature.probe.floor))

    def _missing(self, floor: float) -> Verdict:
        """Return the condition that would fail even with the curvature that the probe estimates."""

        def distance(gradient_norm: float) -> float:
            return kantorovich_distance(
                gradient_norm=gradient_norm, rounding=self.rounding, floor=floor, lipschitz=self.lipschitz
            )

        if not floor > 0 or distance(self.norm) <= self.target:
            return Verdict.NO_CURVATURE
        if distance(0.0) > self.target:
            return Verdict.ROUNDING
        return Verdict.TOO_FAR if math.isfinite(distance(self.norm)) else Verdict.TOO_STEEP

    def _h(self) -> float:
        return kantorovich(
            gradient_norm=self.norm, rounding=self.rounding, floor=self.floor, lipschitz=self.lipschitz
        )

    def _distance(self) -> float:
        return kantorovich_distance(
            gradient_norm=self.norm, rounding=self.rounding, floor=self.floor, lipschitz=self.lipschitz
        )

    def result(self, verdict: Verdict) -> KantorovichResult:
        """Return everything measured so far with the verdict."""
        return KantorovichResult(
            verdict=verdict,
            target=self.target,
            gradient_norm=self.norm,
            rounding=self.rounding,
            distance=self._distance() if verdict is not Verdict.CANCELLED else math.inf,
            floor=self.floor,
            lipschitz=self.lipschitz,
            source="analytic" if self.analytic else "sampled",
            derivation=self.derivation,
            radius=self.radius,
            h=self._h(),
            needed=self.needed,
            curvature=self.curvature,
            passes=self.passes,
            seconds=time.monotonic() - self.started,
        )

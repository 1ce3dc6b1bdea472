"""Trust-region certified unlearning exactly as its paper states it.

    Δ̄_t = min(Δ_t, τ‖g_t‖/L̂_t),   L̂_0 by power iteration,   L̂_t = α_L·L̂_{t-1},   T steps

The subproblem is solved by conjugate gradients or LiSSA, with the Cauchy point if that is better. Every step
records the quantities the paper derives for it. `worker.engine.trust_region` is the default solver, without
the cap on steps. docs/paper.md explains the differences.
"""

import math
import time
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from worker.engine.baselines import tr_bounds
from worker.engine.baselines.lipschitz import largest_eigenvalue
from worker.engine.baselines.lissa import LissaSettings, lissa
from worker.engine.baselines.result import (
    HOLDS,
    BaselineResult,
    Constant,
    Outcome,
    Verdict,
    convex,
    posterior_from,
    tidy,
)
from worker.engine.objective import CertifiedGradient, Evaluation, HessianOperator, Objective
from worker.engine.subproblem import Proposal, Quadratic, cauchy, steihaug

_ASSUMED_FLOOR = (
    "the curvature floor holds on a convex region with every iterate and the retrained weights (Assumption 2)"
)


@dataclass(frozen=True, slots=True)
class PaperSettings:
    """The constants of the paper's MNIST column. CIFAR-10 uses T = 10 and τ = 1.

    The paper does not print α_L, κ and the number of products.
    """

    steps: int = 5  # T
    tau: float = 0.8
    initial_radius: float = 1.0  # Δ_0
    accept: float = 0.1  # η₁
    expand: float = 0.9  # η₂
    shrink: float = 0.5  # γ_dec
    grow: float = 2.0  # γ_inc
    growth: float = 1.0  # α_L ≥ 1
    power_iterations: int = 20
    subproblem: Literal["cg", "lissa"] = "cg"
    max_products: int = 100  # per step, of cg
    forcing: float = 1e-3  # relative residual of cg
    solver: LissaSettings = field(default_factory=LissaSettings)
    bump: float = 0.0  # damping after a rejected step, doubled at each further one; 0: off
    kappa: float = 1.0  # share of the Cauchy decrease a step must reach, or the Cauchy point is used
    product_error: float = 0.0  # ε_H: products in float64 over all rows
    seed: int = 0

    def __post_init__(self) -> None:
        if not (0 < self.tau <= 1 and self.growth >= 1 and 0 < self.kappa <= 1 and self.steps >= 1):
            raise ValueError("need 0 < τ ≤ 1, α_L ≥ 1, 0 < κ ≤ 1 and at least one step")


@dataclass(frozen=True, slots=True)
class PaperStep:
    """Record of step t.

    `counted` steps earned the factor of Corollary 1: accepted, not cut by Δ_t, decrease as claimed.
    """

    index: int
    gradient_norm: float  # ‖g_t‖
    radius: float  # Δ_t
    capped: float  # Δ̄_t
    length: float  # ‖p_t‖
    lipschitz: float  # L̂_t
    ratio: float  # ρ_t; NaN without a predicted decrease
    accepted: bool
    counted: bool
    fallback: bool  # the Cauchy point was taken
    drop: float  # PR^est_t = m(0) - m(p)
    inverse_error: float  # ε_iHVP along g_t
    gradient_bound: float  # U_t
    reduction_floor: float  # PR_t
    passes: float  # cumulative
    seconds: float  # cumulative


@dataclass(frozen=True, slots=True)
class PaperResult(BaselineResult):
    """Result of the method with its steps."""

    steps: tuple[PaperStep, ...]


def unlearn(
    objective: Objective, start: Tensor, *, settings: PaperSettings | None = None, floor: float | None = None
) -> PaperResult:
    """Take T capped steps from `start` (d,).

    μ is the objective's own floor if convex, else `floor`, which may be None.
    """
    settings = settings or PaperSettings()
    known = objective.curvature_floor if convex(objective) else floor
    run = _Run(objective, start, settings, known)
    for _ in range(settings.steps):
        run.advance()
    return run.result()


@dataclass(frozen=True, slots=True)
class _Solved:
    """Solution of one subproblem."""

    proposal: Proposal
    fallback: bool
    inverse_error: float


class _Run:
    """State of one run."""

    def __init__(self, objective: Objective, w: Tensor, settings: PaperSettings, floor: float | None) -> None:
        self.started = time.monotonic()
        self.objective, self.settings, self.floor = objective, settings, floor
        self.w, self.current = w, objective.evaluate(w)
        self.first = self.current.norm + self.current.rounding
        operator = objective.hessian(w)
        self.lipschitz = largest_eigenvalue(
            operator, w, iterations=settings.power_iterations, seed=settings.seed
        )
        self.passes = 1 + (settings.power_iterations + 1) * operator.fraction
        self.radius, self.damping = settings.initial_radius, 0.0
        self.steps: list[PaperStep] = []

    def advance(self) -> None:
        """Propose one step within Δ̄_t and accept it if ρ_t ≥ η₁."""
        current, settings = self.current, self.settings
        if self.steps:
            self.lipschitz *= settings.growth
        # At g = 0 or without curvature the cap is meaningless.
        cap = settings.tau * current.norm / self.lipschitz if self.lipschitz > 0 else math.inf
        capped = min(self.radius, cap)
        solved = self._solve(capped)
        trial = self.objective.evaluate(self.w + solved.proposal.step)
        self.passes += 1
        drop = solved.proposal.drop
        ratio = (current.value - trial.value) / drop if drop > 0 else math.nan  # the agreement ratio
        accepted = math.isfinite(trial.norm) and ratio >= settings.accept
        claimed = (
            settings.kappa * settings.tau * current.norm**2 / (2 * self.lipschitz) if cap < math.inf else 0.0
        )
        counted = accepted and self.radius >= cap and drop >= claimed * (1 - 1e-12)
        self.steps.append(self._record(solved, current, capped, ratio, accepted=accepted, counted=counted))
        self._update(ratio, accepted)
        if accepted:
            self.w, self.current = self.w + solved.proposal.step, trial

    def _update(self, ratio: float, accepted: bool) -> None:
        """Update the radius and the bump.

        As in the paper's appendix C, growth does not require the boundary.
        """
        settings = self.settings
        if not accepted:
            self.radius *= settings.shrink
            self.damping = 2 * self.damping if self.damping else settings.bump
        else:
            self.radius *= settings.grow if ratio >= settings.expand else 1.0
            self.damping = 0.0

    def _solve(self, capped: float) -> _Solved:
        operator, settings = self.objective.hessian(self.w), self.settings
        damping, gradient = self.damping, self.current.gradient
        quadratic = Quadratic(gradient, lambda v: operator.product(v) + damping * v)
        if settings.subproblem == "lissa":
            return self._by_lissa(quadratic, operator, capped)
        tolerance = settings.forcing * self.current.norm
        proposal = steihaug(quadratic, capped, tolerance=tolerance, limit=settings.max_products)
        self.passes += (proposal.products + 1) * operator.fraction
        # On the boundary the step is not an approximate inverse-Hessian product.
        error = 0.0 if proposal.boundary else self._inverse_error(proposal.residual)
        return _Solved(
            proposal, fallback=False, inverse_error=error
        )  # the first iterate of cg is the Cauchy point

    def _by_lissa(self, quadratic: Quadratic, operator: HessianOperator, capped: float) -> _Solved:
        """Return -H̃⁻¹g cut to the radius, or the Cauchy point if that predicts a larger decrease."""
        solved = lissa(self.objective, self.w, quadratic.gradient, self.settings.solver, damping=self.damping)
        length = _norm(solved.solution)
        p = -solved.solution * (min(1.0, capped / length) if length > 0 else 0.0)
        image = quadratic.product(p)
        residual = quadratic.gradient + image
        drop = -0.5 * float(p @ (quadratic.gradient + residual))
        newton = Proposal(p, drop, _norm(residual), boundary=length >= capped, products=1)
        simple = cauchy(quadratic, capped, tolerance=0.0, limit=1)
        self.passes += solved.passes + 3 * operator.fraction
        fallback = solved.diverged or not drop >= self.settings.kappa * simple.drop
        error = self._inverse_error(solved.relative_residual * self.current.norm)
        return _Solved(simple if fallback else newton, fallback, 0.0 if fallback else error)

    def _inverse_error(self, residual: float) -> float:
        """Bound ‖x - H⁻¹g‖/‖g‖ ≤ ‖Hx - g‖/(μ‖g‖), the part of ‖H̃⁻¹ - H⁻¹‖ that acts on this gradient."""
        if self.floor is None or not self.floor > 0 or not self.current.norm > 0:
            return math.inf
        return residual / (self.floor * self.current.norm)

    def _record(
        self,
        solved: _Solved,
        current: Evaluation,
        capped: float,
        ratio: float,
        *,
        accepted: bool,
        counted: bool,
    ) -> PaperStep:
        bound = tr_bounds.gradient_bound(
            first=self.first,
            lipschitz=[step.lipschitz for step in self.steps],
            radii=[step.capped for step in self.steps],
        )
        floor = tr_bounds.reduction_floor(
            estimate=solved.proposal.drop,
            radius=capped,
            gradient_bound=bound,
            curvature=self.lipschitz,
            gradient_error=current.rounding,
            product_error=self.settings.product_error,
            inverse_error=solved.inverse_error,
        )
        return PaperStep(
            index=len(self.steps),
            gradient_norm=current.norm,
            radius=self.radius,
            capped=capped,
            length=_norm(solved.proposal.step),
            lipschitz=self.lipschitz,
            ratio=ratio,
            accepted=accepted,
            counted=counted,
            fallback=solved.fallback,
            drop=solved.proposal.drop,
            inverse_error=solved.inverse_error,
            gradient_bound=bound,
            reduction_floor=floor,
            passes=self.passes,
            seconds=time.monotonic() - self.started,
        )

    def result(self) -> PaperResult:
        """Return the result of the steps taken so far."""
        current = CertifiedGradient(self.current.norm, self.current.rounding)
        verdict = self._verdict()
        counted = sum(step.counted for step in self.steps)
        return PaperResult(
            method="tr-paper",
            verdict=verdict,
            w=self.w,
            distance=self._distance(counted) if verdict.holds else math.inf,
            posterior=posterior_from(self.objective, current),
            gradient_norm=current.norm,
            rounding=current.rounding,
            constants=tidy(self._constants(counted)),
            assumed=() if convex(self.objective) else (_ASSUMED_FLOOR,),
            passes=self.passes,
            seconds=time.monotonic() - self.started,
            steps=tuple(self.steps),
        )

    def _verdict(self) -> Verdict:
        if self.floor is None or not self.floor > 0:
            return Verdict(Outcome.NO_FLOOR, f"Assumption 2 needs μ > 0, known is {self.floor!r}")
        if not (math.isfinite(self.first) and math.isfinite(self.current.norm)):
            return Verdict(Outcome.NON_FINITE, "the gradient or the bound on its rounding is not finite")
        return HOLDS

    def _distance(self, counted: int) -> float:
        settings = self.settings
        return tr_bounds.corollary_distance(
            first=self.first,
            floor=self.floor or 0.0,
            ceiling=max(step.lipschitz for step in self.steps),
            counted=counted,
            accept=settings.accept,
            kappa=settings.kappa,
            tau=settings.tau,
        )

    def _constants(self, counted: int) -> dict[str, Constant]:
        settings, last = self.settings, self.steps[-1]
        return {
            "mu": self.floor,
            "L_max": max(step.lipschitz for step in self.steps),
            "gradient_norm_start": self.first,
            "T": settings.steps,
            "tau": settings.tau,
            "kappa": settings.kappa,
            "eta_1": settings.accept,
            "alpha_L": settings.growth,
            "subproblem": settings.subproblem,
            "steps_accepted": sum(step.accepted for step in self.steps),
            "steps_counted": counted,
            "corollary_1": self._distance(counted),
            "corollary_1_all_steps": self._distance(settings.steps),
            "U_T": last.gradient_bound,
            "U_T_before_run": tr_bounds.blind_gradient_bound(
                first=self.first, tau=settings.tau, growth=settings.growth, steps=settings.steps
            ),
            "PR_T": last.reduction_floor,
        }


def _norm(v: Tensor) -> float:
    return float(torch.linalg.vector_norm(v))

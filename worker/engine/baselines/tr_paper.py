"""Trust-region certified unlearning, step by step as its paper has it.

    Δ̄_t = min(Δ_t, τ‖g_t‖/L̂_t),   L̂_0 by power iteration,   L̂_t = α_L·L̂_{t-1},   T steps

The subproblem is solved by conjugate gradients or LiSSA, with the Cauchy point where that is better. Every
step records what the paper derives for it. `worker.engine.trust_region` is the loop without the cap, and the
default; docs/paper.md says why they differ.
"""

import math
import time
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from worker.engine.objective import CertifiedGradient, Evaluation, HessianOperator, Objective
from worker.engine.published import tr_bounds
from worker.engine.published.ceiling import curvature_ceiling
from worker.engine.published.lissa import LissaSettings, lissa
from worker.engine.published.outcome import (
    HOLDS,
    Constant,
    Outcome,
    PublishedResult,
    Verdict,
    convex,
    posterior_from,
    tidy,
)
from worker.engine.subproblem import Proposal, Quadratic, cauchy, steihaug

_ASSUMED_FLOOR = (
    "the curvature floor holds on a convex region with every iterate and the retrained weights (Assumption 2)"
)


@dataclass(frozen=True, slots=True)
class PaperSettings:
    """The paper's constants, its MNIST column; CIFAR-10 has T = 10 and τ = 1. α_L, κ and the counts of
    products are not printed there."""

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
    forcing: float = 1e-3  # relative residual asked of cg
    solver: LissaSettings = field(default_factory=LissaSettings)
    bump: float = 0.0  # damping put on the model after a rejected step, doubled at each further one; 0: off
    kappa: float = 1.0  # share of the Cauchy decrease a step must reach; else the Cauchy point is taken
    product_error: float = 0.0  # ε_H: products in float64 over all rows
    seed: int = 0

    def __post_init__(self) -> None:
        if not (0 < self.tau <= 1 and self.growth >= 1 and 0 < self.kappa <= 1 and self.steps >= 1):
            raise ValueError("need 0 < τ ≤ 1, α_L ≥ 1, 0 < κ ≤ 1 and at least one step")


@dataclass(frozen=True, slots=True)
class PaperStep:
    """Step t. `counted`: it earned Corollary 1's factor (accepted, not cut by Δ_t, decrease as claimed)."""

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
class PaperResult(PublishedResult):
    steps: tuple[PaperStep, ...]


def unlearn(
    objective: Objective, start: Tensor, *, settings: PaperSettings | None = None, floor: float | None = None
) -> PaperResult:
    """T capped steps from `start` (d,). μ is the objective's own floor if convex, else `floor` or none."""
    chosen = settings or PaperSettings()
    known = objective.curvature_floor if convex(objective) else floor
    run = _Run(objective, start, chosen, known)
    for _ in range(chosen.steps):
        run.advance()
    return run.result()


@dataclass(frozen=True, slots=True)
class _Solved:
    proposal: Proposal
    fallback: bool
    inverse_error: float


class _Run:
    def __init__(self, objective: Objective, w: Tensor, settings: PaperSettings, floor: float | None) -> None:
        self.started = time.monotonic()
        self.objective, self.settings, self.floor = objective, settings, floor
        self.w, self.here = w, objective.evaluate(w)
        self.first = self.here.norm + self.here.rounding
        operator = objective.hessian(w)
        self.lipschitz = curvature_ceiling(
            operator, w, iterations=settings.power_iterations, seed=settings.seed
        )
        self.passes = 1 + (settings.power_iterations + 1) * operator.fraction
        self.radius, self.damping = settings.initial_radius, 0.0
        self.steps: list[PaperStep] = []

    def advance(self) -> None:
        """One proposal inside Δ̄_t, judged by ρ_t."""
        here, settings = self.here, self.settings
        if self.steps:
            self.lipschitz *= settings.growth
        # at g = 0 or without curvature the cap says nothing: there is nothing to do, or no length to cap
        cap = settings.tau * here.norm / self.lipschitz if self.lipschitz > 0 else math.inf
        capped = min(self.radius, cap)
        solved = self._solve(capped)
        there = self.objective.evaluate(self.w + solved.proposal.step)
        self.passes += 1
        drop = solved.proposal.drop
        ratio = (here.value - there.value) / drop if drop > 0 else math.nan  # eq. agreement ratio
        accepted = math.isfinite(there.norm) and ratio >= settings.accept
        claimed = (
            settings.kappa * settings.tau * here.norm**2 / (2 * self.lipschitz) if cap < math.inf else 0.0
        )
        counted = accepted and self.radius >= cap and drop >= claimed * (1 - 1e-12)
        self.steps.append(self._record(solved, here, capped, ratio, accepted=accepted, counted=counted))
        self._update(ratio, accepted)
        if accepted:
            self.w, self.here = self.w + solved.proposal.step, there

    def _update(self, ratio: float, accepted: bool) -> None:
        """The radius (the paper's appendix C: growth does not ask for the boundary), and the bump."""
        settings = self.settings
        if not accepted:
            self.radius *= settings.shrink
            self.damping = 2 * self.damping if self.damping else settings.bump
        else:
            self.radius *= settings.grow if ratio >= settings.expand else 1.0
            self.damping = 0.0

    def _solve(self, capped: float) -> _Solved:
        operator, settings = self.objective.hessian(self.w), self.settings
        damping, gradient = self.damping, self.here.gradient
        quadratic = Quadratic(gradient, lambda v: operator.product(v) + damping * v)
        if settings.subproblem == "lissa":
            return self._by_lissa(quadratic, operator, capped)
        tolerance = settings.forcing * self.here.norm
        proposal = steihaug(quadratic, capped, tolerance=tolerance, limit=settings.max_products)
        self.passes += (proposal.products + 1) * operator.fraction
        # on the boundary the step is chosen by the model's value and stands for no inverse
        error = 0.0 if proposal.boundary else self._inverse_error(proposal.residual)
        return _Solved(proposal, fallback=False, inverse_error=error)  # cg starts at the Cauchy point

    def _by_lissa(self, quadratic: Quadratic, operator: HessianOperator, capped: float) -> _Solved:
        """-H̃⁻¹g cut to the radius, or the Cauchy point if that promises more."""
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
        error = self._inverse_error(solved.relative_residual * self.here.norm)
        return _Solved(simple if fallback else newton, fallback, 0.0 if fallback else error)

    def _inverse_error(self, residual: float) -> float:
        """‖x - H⁻¹g‖/‖g‖ ≤ ‖Hx - g‖/(μ‖g‖): the part of ‖H̃⁻¹ - H⁻¹‖ that acts on this gradient."""
        if self.floor is None or not self.floor > 0 or not self.here.norm > 0:
            return math.inf
        return residual / (self.floor * self.here.norm)

    def _record(
        self, solved: _Solved, here: Evaluation, capped: float, ratio: float, *, accepted: bool, counted: bool
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
            gradient_error=here.rounding,
            product_error=self.settings.product_error,
            inverse_error=solved.inverse_error,
        )
        return PaperStep(
            index=len(self.steps),
            gradient_norm=here.norm,
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
        here = CertifiedGradient(self.here.norm, self.here.rounding)
        verdict = self._verdict()
        counted = sum(step.counted for step in self.steps)
        return PaperResult(
            method="tr-paper",
            verdict=verdict,
            w=self.w,
            distance=self._distance(counted) if verdict.holds else math.inf,
            posterior=posterior_from(self.objective, here),
            gradient_norm=here.norm,
            rounding=here.rounding,
            constants=tidy(self._constants(counted)),
            assumed=() if convex(self.objective) else (_ASSUMED_FLOOR,),
            passes=self.passes,
            seconds=time.monotonic() - self.started,
            steps=tuple(self.steps),
        )

    def _verdict(self) -> Verdict:
        if self.floor is None or not self.floor > 0:
            return Verdict(Outcome.NO_FLOOR, f"Assumption 2 needs μ > 0, known is {self.floor!r}")
        if not (math.isfinite(self.first) and math.isfinite(self.here.norm)):
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

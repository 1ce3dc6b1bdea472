"""One Newton step on the removal, for convex losses (Guo, Goldstein, Hannun & van der Maaten 2020).

    w⁻ = w* - H⁻¹∇f_R(w*),   H = ∇²f_R(w*)   (the Hessian over the retained records)

The publication bounds sums over records: ‖∇L(w⁻)‖ ≤ 4γC²/(λ²(n-1)) for one record (Theorem 1;
4γm²C²/(λ²(n-m)) for m at once) and, from the data, ‖∇L(w⁻)‖ ≤ γ‖X‖·‖H⁻¹Δ‖·‖XH⁻¹Δ‖ (Corollary 1). Here f_R is
a mean, so both are divided by r. They rest on ∇f_R(w⁻) = (H_η - H)p for some point on the step, which also
holds for several outputs if γ is the Lipschitz constant of ∂²ℓ/∂z².

The publication perturbs the objective: training adds bᵀw with b ~ N(0, (cβ/ε)²I), where β bounds the
residual, and nothing is added to the weights. That requires a model trained this way. Here the same residual
is turned into a distance by strong convexity, Δ = β/λ, for noise on the output.
"""

import math
import time
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from worker.engine.baselines.lipschitz import LossConstants, RowFacts, loss_constants, row_facts
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
from worker.engine.linear import LinearObjective
from worker.engine.objective import ApproximateInverse, Objective, Sampling
from worker.engine.subproblem import Quadratic, steihaug

_SAMPLE = 4096
Form = Literal["data-dependent", "worst-case"]
_ASSUMED = (
    "noise is added to the weights; the publication perturbs the training objective instead",
    "the distance follows from the gradient residual by strong convexity, which the publication does not do",
    "with several outputs the constants are derived here; the publication trains one against the rest",
)


@dataclass(frozen=True, slots=True)
class GuoSettings:
    """Settings of the method.

    `row_bound` is 1 in the publication; another value is the theorem for rescaled rows.
    """

    form: Form = "data-dependent"
    row_bound: float = 1.0
    tolerance: float = 1e-10  # of the linear solve, relative to ‖g‖; the residual is added to the bound
    max_products: int = 1000


@dataclass(frozen=True, slots=True)
class _Step:
    """A Newton step with its residual and cost."""

    p: Tensor  # (d,)
    gradient_norm: float  # with its rounding
    unsolved: float  # ‖g + Hp‖
    passes: float


def newton_step(objective: Objective, w: Tensor, *, tolerance: float = 1e-12, limit: int = 1000) -> Tensor:
    """Return w - H⁻¹∇f(w), with the Hessian over all rows. (d,) -> (d,)"""
    return w + _solve(objective, w, tolerance, limit).p


def unlearn(
    objective: Objective, start: Tensor, *, erased: int, settings: GuoSettings | None = None
) -> BaselineResult:
    """Take one Newton step on the retained records from `start` (d,).

    `start` was trained with the `erased` records.
    """
    options, started = settings or GuoSettings(), time.monotonic()
    losses = loss_constants(objective)
    distance, verdict = math.inf, _refusal_of_loss(objective, losses)
    # An indefinite Hessian has no meaningful Newton step, so a loss that is not convex takes none.
    limit = options.max_products if convex(objective) else 0
    step = _solve(objective, start, options.tolerance, limit)
    w = start + step.p
    final_gradient = objective.certified_gradient(w)
    passes = step.passes + 1
    constants: dict[str, Constant] = {
        "form": options.form,
        "row_bound": options.row_bound,
        "erased": erased,
        "unsolved": step.unsolved,
        "step_length": _norm(step.p),
    }
    if isinstance(objective, LinearObjective) and losses is not None:
        facts = row_facts(objective, step.p, row_bound=options.row_bound)
        passes += 1
        verdict = _check(objective, step, losses, facts, erased, options)
        bounds = residual_bounds(objective, step.p, losses, facts, erased=erased, row_bound=options.row_bound)
        constants |= bounds | {"gamma": losses.third, "C": losses.slope * options.row_bound}
        constants |= {"X_norm": facts.spectral, "XP_norm": facts.image, "lambda": objective.lam}
        if verdict.holds:
            distance = (bounds[options.form] + step.unsolved) / objective.curvature_floor * (1 + 1e-12)
    return BaselineResult(
        method="guo2020",
        verdict=verdict,
        w=w,
        distance=distance,
        posterior=posterior_from(objective, final_gradient),
        gradient_norm=final_gradient.norm,
        rounding=final_gradient.rounding,
        constants=tidy(constants),
        assumed=_ASSUMED,
        passes=passes,
        seconds=time.monotonic() - started,
    )


def residual_bounds(
    objective: LinearObjective,
    step: Tensor,
    losses: LossConstants,
    facts: RowFacts,
    *,
    erased: int,
    row_bound: float,
) -> dict[str, float]:
    """Return both published bounds on ‖∇f_R(w⁻)‖ for an exactly solved step, for the mean over r records."""
    rows, floor = objective.total, objective.curvature_floor
    # Corollary 1, with row_bound in place of max‖x‖, which the publication sets to 1.
    from_data = losses.third * facts.spectral * row_bound * _norm(step) * facts.image / rows
    # Theorem 1: ‖p‖ ≤ ‖g‖/λ and ‖g‖ ≤ 2mC/r at the minimiser over all records
    reach = 2 * erased * losses.slope * row_bound / (rows * floor) if losses.third > 0 else 0.0
    return {"data-dependent": from_data, "worst-case": losses.third * row_bound**3 * reach**2}


def loss_perturbation(*, residual: float, epsilon: float, delta: float) -> float:
    """Return σ of the noise that the publication adds to the objective (Theorem 3).

    Its δ is 1.5·e^(-c²/2).

    `residual` is that of a sum over records.

    >>> round(loss_perturbation(residual=1.0, epsilon=1.0, delta=1e-5), 3)
    4.882
    """
    return math.sqrt(2 * math.log(1.5 / delta)) * residual / epsilon


def _solve(objective: Objective, w: Tensor, tolerance: float, limit: int) -> _Step:
    evaluation = objective.evaluate(w)
    operator = objective.hessian(w)
    inverse = _preconditioner(objective, w)
    quadratic = Quadratic(evaluation.gradient, operator.product, None if inverse is None else inverse.apply)
    proposal = steihaug(quadratic, math.inf, tolerance=tolerance * evaluation.norm, limit=limit)
    # Recomputed, because the residual of the recurrence drifts from the true one.
    unsolved = _norm(evaluation.gradient + operator.product(proposal.step)) + evaluation.rounding
    passes = 1 + (proposal.products + 2) * operator.fraction + (0.0 if inverse is None else inverse.passes)
    return _Step(proposal.step, evaluation.norm + evaluation.rounding, unsolved, passes)


def _preconditioner(objective: Objective, w: Tensor) -> ApproximateInverse | None:
    """Return a preconditioner if there are enough rows to pay for it. It does not change the step."""
    if objective.rows.count < 2 * _SAMPLE:
        return None
    return objective.hessian(w, Sampling(rows=_SAMPLE)).approximate_inverse(rank=128)


def _refusal_of_loss(objective: Objective, losses: LossConstants | None) -> Verdict:
    if not convex(objective):
        return Verdict(Outcome.NOT_CONVEX, Outcome.NOT_CONVEX.value)
    if losses is None:
        return Verdict(Outcome.NO_LIPSCHITZ, Outcome.NO_LIPSCHITZ.value)
    return HOLDS


def _check(
    objective: LinearObjective,
    step: _Step,
    losses: LossConstants,
    facts: RowFacts,
    erased: int,
    settings: GuoSettings,
) -> Verdict:
    """Check the conditions of the publication, in its order."""
    if not (math.isfinite(step.unsolved) and math.isfinite(facts.image)):
        return Verdict(Outcome.NON_FINITE, "the Newton step or its image is not finite")
    if losses.third > 0 and facts.longer:
        verb = "is" if facts.longer == 1 else "are"
        reason = f"{facts.longer} of {objective.total} rows {verb} longer than {settings.row_bound:g}"
        return Verdict(Outcome.LONG_ROWS, reason)
    if settings.form == "data-dependent" or losses.third == 0:
        return HOLDS
    if not math.isfinite(losses.slope):
        return Verdict(Outcome.UNBOUNDED_GRADIENT, Outcome.UNBOUNDED_GRADIENT.value)
    most = 2 * erased * losses.slope * settings.row_bound / objective.total
    if step.gradient_norm > most:
        reason = f"‖g‖ = {step.gradient_norm:.3g} at the start, at most 2mC/r = {most:.3g} at the minimiser"
        return Verdict(Outcome.NOT_A_MINIMISER, reason)
    return HOLDS


def _norm(v: Tensor) -> float:
    return float(torch.linalg.vector_norm(v))

"""The measured examples of docs/paper.md: the paper's statements on MNIST softmax.

Rows scaled to norm ≤ 1 with a constant feature, λ = 1e-4, 1,600 of 12,000 rows erased with the paper's class
weights (BENCH=full: 8,000 of 60,000, the same share). `python -m bench.paper_examples` writes
results/paper_examples.json. All figures are distances and ratios, none depends on the clock. The function
names are the keys of the report.
"""

import json
import math
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from bench.datasets import mnist
from bench.engine import CLASSES, LAMBDA, SCALE, SEED, Data, load_digits
from bench.measurement import RESULTS, full, machine
from lethe.certificate.privacy import classical_sigma, delta_of, sigma_for
from worker.engine.baselines import guo2020, tr_paper, zhang2024
from worker.engine.baselines.lipschitz import largest_eigenvalue
from worker.engine.baselines.lissa import LissaSettings, lissa
from worker.engine.baselines.result import BaselineResult, noise_last, posterior
from worker.engine.families import Softmax
from worker.engine.objective import Sampling
from worker.engine.rows import ArrayRows
from worker.engine.subproblem import Quadratic, steihaug
from worker.engine.trust_region import Solution, SolverSettings, minimise, train
from worker.evaluation.biased_deletions import biased_deletion
from worker.evaluation.utility import classification

ROWS = 60_000 if full() else 12_000
ERASED = ROWS * 2 // 15
TARGET, DELTA, PUBLIC = 1e-2, 1e-5, ROWS // 12
WIDE = tr_paper.PaperSettings(steps=10, tau=0.8)


class Problem:
    """The erasure that every example examines."""

    def __init__(self) -> None:
        everything = load_digits()
        part = np.sort(np.random.default_rng(SEED).permutation(len(everything.labels))[:ROWS])
        self.digits = Data(everything.features[part], everything.labels[part])
        self.deletion = biased_deletion(self.digits.labels, ERASED, seed=SEED)
        self.kept = self.digits.without(self.deletion.rows)
        self.objective = self.kept.objective()
        self.start = train(self.digits.objective(), target=1e-4).w
        self.first = self.objective.evaluate(self.start)

    @cached_property
    def free(self) -> Solution:
        """Ten trust-region steps without the cap."""
        return minimise(self.objective, self.start, target=1e-6, settings=SolverSettings(max_steps=10))

    @cached_property
    def truth(self) -> Tensor:
        """The retrained weights, to a certified 1e-8."""
        return minimise(self.objective, self.free.w, target=1e-8, settings=SolverSettings(max_steps=60)).w

    @cached_property
    def capped(self) -> tr_paper.PaperResult:
        """Ten steps of the paper's method."""
        return tr_paper.unlearn(self.objective, self.start, settings=WIDE)

    @cached_property
    def guo(self) -> BaselineResult:
        """The Newton step of Guo et al."""
        chosen = guo2020.GuoSettings(tolerance=1e-6)
        return guo2020.unlearn(self.objective, self.start, erased=ERASED, settings=chosen)

    def true(self, w: Tensor) -> float:
        """Return the distance to the retrained weights."""
        return _norm(w - self.truth)

    def figures(self, w: Tensor) -> dict[str, float | None]:
        """Return the true distance and B1 at w."""
        return {"true": self.true(w), "b1": posterior(self.objective, w)}


def run() -> None:
    """Run every example, print it and write the report."""
    problem, console = Problem(), Console()
    report: dict[str, Any] = {
        "machine": machine(),
        "seed": SEED,
        "lambda": LAMBDA,
        "rows": ROWS,
        "erased": ERASED,
    }
    examples = (shift, cap, corollary, ceiling, residual_bound, reduction, noise, anchor, comparison, rivals)
    for example in examples:
        report[example.__name__] = example(problem)
        console.print_json(json.dumps({example.__name__: report[example.__name__]}))
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "paper_examples.json").write_text(json.dumps(report, indent=2) + "\n")


def shift(problem: Problem) -> dict[str, Any]:
    """Proposition 1: a biased deletion changes the class mix, a uniform one of the same size hardly does."""
    uniform = biased_deletion(problem.digits.labels, ERASED, weights={}, seed=SEED)
    biased, even = problem.deletion.drift, uniform.drift
    return {
        "kl_retained_original_biased": biased.kl_retained_original,
        "kl_original_retained_biased": biased.kl_original_retained,
        "kl_retained_original_uniform": even.kl_retained_original,
        "kl_original_retained_uniform": even.kl_original_retained,
    }


def cap(problem: Problem) -> dict[str, Any]:
    """Departure 1: with the cap ‖p‖ ≤ τ‖g‖/L, convergence is that of gradient descent."""
    capped, free = problem.capped, problem.free
    longest = _norm(problem.guo.w - problem.start)
    return {
        "start": problem.figures(problem.start),
        "capped_10_steps": problem.figures(capped.w) | {"passes": capped.passes},
        "free_steps": problem.figures(free.w) | {"passes": free.passes, "steps": len(free.steps)},
        "first_step_capped": capped.steps[0].length,
        "newton_step_length": longest,
        "newton_step_over_capped": longest / capped.steps[0].length,
    }


def corollary(problem: Problem) -> dict[str, Any]:
    """Departure 2: what Corollary 1 states, which steps earn it, and how many steps it would need."""
    result = problem.capped
    narrow = tr_paper.unlearn(
        problem.objective, problem.start, settings=replace(WIDE, initial_radius=1e-2, grow=1 + 1e-9)
    )
    step, most = narrow.steps[0], float(result.constants["L_max"] or 0)
    claimed = WIDE.tau * step.gradient_norm**2 / (2 * step.lipschitz)
    contraction = 1 - WIDE.accept * WIDE.kappa * WIDE.tau * LAMBDA / most
    return {
        "corollary_1": result.distance,
        "gradient_over_mu": problem.first.norm / LAMBDA,
        "steps_counted": result.constants["steps_counted"],
        "contraction": contraction,
        "steps_to_target": 2 * math.log(TARGET * LAMBDA / problem.first.norm) / math.log(contraction),
        "corollary_over_true": result.distance / problem.true(result.w),
        "radius_0.01": {
            "steps_accepted": narrow.constants["steps_accepted"],
            "steps_counted": narrow.constants["steps_counted"],
            "claimed_decrease_over_models": claimed / step.drop,
        },
    }


def ceiling(problem: Problem) -> dict[str, Any]:
    """Departure 3: power iteration approaches L from below, and the gap is unknown before the run."""
    operator = problem.objective.hessian(problem.start)
    estimates = {
        count: largest_eigenvalue(operator, problem.start, iterations=count, seed=SEED)
        for count in (2, 5, 20, 50)
    }
    gap = problem.first.value - problem.objective.value(problem.truth)
    substitute = problem.first.norm**2 / (2 * LAMBDA)
    return {
        "estimate_over_longest_run": {
            str(count): value / estimates[50] for count, value in estimates.items()
        },
        "gap": gap,
        "substitute": substitute,
        "substitute_over_gap": substitute / gap,
    }


def residual_bound(problem: Problem) -> dict[str, Any]:
    """Departure 6: U_t never decreases, and before the run it can only be (1 + τ)^t·‖g₀‖."""
    result = problem.capped
    return {
        "gradient_over_start": result.gradient_norm / problem.first.norm,
        "U_T_over_start": float(result.constants["U_T"] or 0) / problem.first.norm,
        "U_T_before_run_over_start": float(result.constants["U_T_before_run"] or 0) / problem.first.norm,
    }


def reduction(problem: Problem) -> dict[str, Any]:
    """Departure 8: Theorem 2 with LiSSA's measured error, and how often its floor exceeds zero."""
    solver = LissaSettings(chains=2, steps=400, batch=256, seed=SEED)
    chosen = replace(WIDE, steps=5, subproblem="lissa", solver=solver)
    return {f"kappa_{kappa:g}": _reduction(problem, replace(chosen, kappa=kappa)) for kappa in (1.0, 0.1)}


def _reduction(problem: Problem, settings: tr_paper.PaperSettings) -> dict[str, Any]:
    result = tr_paper.unlearn(problem.objective, problem.start, settings=settings)
    return {
        "steps": len(result.steps),
        "positive_floors": sum(step.reduction_floor > 0 for step in result.steps),
        "cauchy_fallbacks": sum(step.fallback for step in result.steps),
        "inverse_errors": [step.inverse_error for step in result.steps],
        "predicted_drops": [step.drop for step in result.steps],
        "floors": [step.reduction_floor for step in result.steps],
    } | problem.figures(result.w)


def noise(problem: Problem) -> dict[str, Any]:
    """Departure 4: the δ that the classical formula really gives, and what its σ costs where it is proved."""
    del problem  # only arithmetic
    shifts = {eps: eps / math.sqrt(2 * math.log(1.25 / DELTA)) for eps in (0.5, 1.0, 8.0, 12.0)}
    half = {"epsilon": 0.5, "delta": DELTA, "distance": 1.0}
    return {
        "delta_of_classical_over_claimed": {
            str(eps): delta_of(epsilon=eps, shift=shift) / DELTA for eps, shift in shifts.items()
        },
        "classical_over_analytic_at_0.5": classical_sigma(**half) / sigma_for(**half),
        "refusal_at_1": noise_last(distance=1.0, epsilon=1.0, delta=DELTA, calibration="classical").reason,
    }


def anchor(problem: Problem) -> dict[str, Any]:
    """Departure 5: micro-F1 on the test digits, with the minimiser anchored at zero or at a public model."""
    raw = mnist()
    pixels = raw.test_images.astype(np.float32) / np.float32(255)
    extended = np.hstack([pixels, np.ones((len(pixels), 1), dtype=np.float32)]) / np.float32(SCALE)
    test = Data(extended.astype(np.float32, copy=False), raw.test_labels.astype(np.int64))
    features, labels = problem.digits.features, problem.digits.labels
    public = train(Data(features[:PUBLIC], labels[:PUBLIC]).objective(), target=1e-2).w
    private = ArrayRows(features[PUBLIC:], labels[PUBLIC:])

    def f1(w: Tensor) -> float:
        return classification(test.objective(), w).micro_f1

    table = {}
    for lam in (1e-4, 1e-2, 1.0):
        held = {"zero": None, "public": public}
        table[f"{lam:g}"] = {
            name: f1(train(Softmax(private, CLASSES, lam, point, bias=False), target=1e-2).w)
            for name, point in held.items()
        }
    return {"public_rows": PUBLIC, "f1_of_public_model": f1(public), "f1": table}


def comparison(problem: Problem) -> dict[str, Any]:
    """Departure 7: one capped step against one damped Newton step, with both conditions of Theorem 3 met."""
    objective, start, first = problem.objective, problem.start, problem.first
    one = tr_paper.unlearn(objective, start, settings=replace(WIDE, steps=1, tau=1.0, initial_radius=1e6))
    operator = objective.hessian(start)
    sampled = objective.hessian(start, Sampling(rows=4096)).approximate_inverse(128)
    quadratic = Quadratic(
        first.gradient, lambda v: operator.product(v) + LAMBDA * v, sampled.apply if sampled else None
    )
    damped = steihaug(quadratic, math.inf, tolerance=1e-6 * first.norm, limit=300).step
    newton = objective.certified_gradient(start + damped).norm
    return {
        "capped_gradient_over_start": one.gradient_norm / first.norm,
        "newton_gradient_over_start": newton / first.norm,
        "capped_over_newton": one.gradient_norm / newton,
    }


def rivals(problem: Problem) -> dict[str, Any]:
    """Departure 11: the baselines' own bounds against the truth.

    It includes the Hessian that the paper prints for Guo et al.
    """
    objective, start = problem.objective, problem.start
    guo = problem.guo
    worst = float(guo.constants["worst-case"] or 0) / LAMBDA
    whole = problem.digits.objective()
    every = whole.hessian(start)
    sampled = whole.hessian(start, Sampling(rows=4096)).approximate_inverse(128)
    quadratic = Quadratic(problem.first.gradient, every.product, sampled.apply if sampled else None)
    step = steihaug(quadratic, math.inf, tolerance=1e-6 * problem.first.norm, limit=300).step
    ours = minimise(objective, start, target=TARGET)
    reach = 1.1 * max(_norm(start), _norm(problem.truth))
    return {
        "ours": problem.figures(ours.w) | {"passes": ours.passes},
        "guo2020": problem.figures(guo.w)
        | {"verdict": guo.verdict.outcome.name, "own": guo.distance, "worst_case": worst},
        "guo2020_with_hessian_of_all_rows": problem.figures(start + step),
        "zhang2024": {f"{damping:g}": _damped(problem, damping, reach) for damping in (1e-2, 1.0)},
        "lissa": _lissa(problem),
    }


def _damped(problem: Problem, damping: float, reach: float) -> dict[str, Any]:
    solver = LissaSettings(chains=2, steps=1000, batch=256, seed=SEED)
    # C must contain the retrained weights by a margin that B1 can prove.
    span = reach + (posterior(problem.objective, problem.start) or 0.0)
    settings = zhang2024.ZhangSettings(constraint=span, damping=damping, solver=solver)
    result = zhang2024.unlearn(problem.objective, problem.start, settings)
    tight = zhang2024.worst_case_distance(
        constraint=reach,
        damping=damping,
        lowest=LAMBDA,
        hessian_lipschitz=float(result.constants["M"] or 0),
        residual_gradient=0.0,
    )
    return problem.figures(result.w) | {
        "verdict": result.verdict.outcome.name,
        "C": span,
        "own": result.distance,
        "C_of_hindsight": reach,
        "theorem_3_4_of_hindsight": tight,
        "relative_residual": result.constants["relative_residual"],
    }


def _lissa(problem: Problem) -> dict[str, Any]:
    """Run LiSSA at the published scale of 1,000 and at a scale of ‖H‖/10.

    Steps and batch are the published code's, with a tenth of its chains.
    """
    objective, start, gradient = problem.objective, problem.start, problem.first.gradient
    norm = largest_eigenvalue(objective.hessian(start), start)
    settings = LissaSettings(chains=1, steps=1000, batch=128, seed=SEED)
    published = lissa(objective, start, gradient, replace(settings, scale=1000.0))
    small = lissa(objective, start, gradient, replace(settings, scale=norm / 10))
    return {
        "relative_residual_at_scale_1000": published.relative_residual,
        "diverged_at_step_with_a_tenth": small.diverged_at,
    }


def _norm(v: Tensor) -> float:
    return float(torch.linalg.vector_norm(v))


if __name__ == "__main__":
    run()

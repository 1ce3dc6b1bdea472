"""Features scaled over ten decades or more, with tiny λ: every run ends with a true outcome."""

import math
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.unit.engine.engine_problems import FAMILIES, random_point
from worker.engine.families import Logistic, Ridge, Softmax
from worker.engine.linear import LinearObjective
from worker.engine.rows import ArrayRows
from worker.engine.subproblem import Quadratic, steihaug
from worker.engine.trust_region import Outcome, Solution, SolverSettings, minimise

DIGITS = 80
SETTINGS = SolverSettings(max_steps=60)


def badly_scaled(
    family: str, *, n: int, width: int, decades: float, centre: float, lam: float, seed: int
) -> LinearObjective:
    """Return columns of size 10^(centre - decades/2) to 10^(centre + decades/2), in random order."""
    rng = np.random.default_rng(seed)
    sizes = 10.0 ** rng.permutation(np.linspace(centre - decades / 2, centre + decades / 2, width))
    features = rng.standard_normal((n, width)) * sizes
    score = (features / sizes) @ rng.standard_normal((width, 3))
    if family == "ridge":
        return Ridge(ArrayRows(features, score[:, 0] + rng.standard_normal(n)), lam)
    if family == "logistic":
        labels = (score[:, 0] + rng.logistic(size=n) > 0).astype(np.int64)
        return Logistic(ArrayRows(features, labels), lam)
    return Softmax(ArrayRows(features, np.argmax(score + rng.gumbel(size=(n, 3)), axis=1)), 3, lam)


class Exact:
    """Return gradient and Hessian in multiprecision, for parameters (outputs × (width, bias))."""

    def __init__(self, objective: LinearObjective) -> None:
        ((x, y),) = objective.rows.chunks(objective.rows.count)
        self.rows = [[mpmath.mpf(v) for v in (*row, 1.0)] for row in x.tolist()]
        self.targets = y.tolist()
        self.family, self.outputs = type(objective), objective.outputs
        self.lam, self.width = mpmath.mpf(objective.lam), objective.rows.width + 1

    def link(self, z: list[Any], y: float) -> tuple[list[Any], list[list[Any]]]:
        """Return the residual ∂ℓ/∂z and the curvature ∂²ℓ/∂z² of one row."""
        if self.family is Ridge:
            return [z[0] - y], [[mpmath.mpf(1)]]
        if self.family is Logistic:
            p = 1 / (1 + mpmath.exp(-z[0]))
            return [p - y], [[p * (1 - p)]]
        top = max(z)
        shares = [mpmath.exp(v - top) for v in z]
        p = [share / sum(shares) for share in shares]
        bend = [[p[a] * ((a == b) - p[b]) for b in range(len(p))] for a in range(len(p))]
        return [v - (c == y) for c, v in enumerate(p)], bend

    def derivatives(self, w: Any) -> tuple[Any, Any]:
        d, width = self.outputs * self.width, self.width
        gradient, hessian = self.lam * w, self.lam * mpmath.eye(d)
        for x, y in zip(self.rows, self.targets, strict=True):
            z = [mpmath.fdot(x, w[c * width : (c + 1) * width]) for c in range(self.outputs)]
            q, bend = self.link(z, y)
            for i in range(d):
                a, u = divmod(i, width)
                gradient[i] += q[a] * x[u] / len(self.rows)
                for j in range(d):
                    b, v = divmod(j, width)
                    hessian[i, j] += bend[a][b] * x[u] * x[v] / len(self.rows)
        return gradient, hessian


def true_distance(objective: LinearObjective, w: torch.Tensor) -> float:
    """Return ‖w - ŵ‖ by Newton's method in 80 digits, damped while the decrement is large."""
    with mpmath.workdps(DIGITS):
        exact = Exact(objective)
        start = mpmath.matrix(objective.grouped(w).reshape(-1).tolist())
        point = start.copy()
        for _ in range(400):
            gradient, hessian = exact.derivatives(point)
            if mpmath.norm(gradient) / exact.lam < mpmath.mpf(10) ** -30:
                return float(mpmath.norm(point - start))
            step = mpmath.lu_solve(hessian, gradient)
            decrement = mpmath.sqrt(abs(mpmath.fdot(step, gradient)))
            point -= step if objective.__class__ is Ridge or decrement < 0.1 else step / (1 + decrement)
    raise AssertionError("the reference did not converge")


def check(objective: LinearObjective, solution: Solution, target: float) -> None:
    assert bool(torch.isfinite(solution.w).all())
    assert solution.outcome in (Outcome.CERTIFIED, Outcome.STALLED, Outcome.STEPS_EXHAUSTED)
    if solution.outcome is Outcome.STALLED:
        # what the outcome says: rounding alone takes up the target, or the model offers no further descent
        assert solution.distance > target
    if solution.outcome is Outcome.CERTIFIED:
        assert solution.distance <= target
        assert true_distance(objective, solution.w) <= solution.distance


@given(
    family=st.sampled_from(FAMILIES),
    seed=st.integers(0, 100_000),
    n=st.integers(2, 8),
    width=st.integers(2, 4),
    decades=st.floats(10, 16),
    centre=st.floats(-8, 8),
    lam_power=st.floats(-8, -3),
    target_power=st.floats(-4, 1),
)
@example(family="ridge", seed=0, n=8, width=4, decades=10.0, centre=0.0, lam_power=-5.7, target_power=-2.0)
@settings(max_examples=120, deadline=None)
def test_a_badly_scaled_problem_ends_with_an_outcome_that_is_true(
    family: str,
    seed: int,
    n: int,
    width: int,
    decades: float,
    centre: float,
    lam_power: float,
    target_power: float,
) -> None:
    lam, target = 10**lam_power, 10**target_power
    objective = badly_scaled(family, n=n, width=width, decades=decades, centre=centre, lam=lam, seed=seed)
    for start in (objective.anchor, random_point(objective, seed)):
        check(objective, minimise(objective, start, target=target, settings=SETTINGS), target)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("centre", [-20.0, -4.0, 0.0, 4.0, 20.0, 60.0])
def test_sampled_single_precision_steering_survives_columns_beyond_its_range(
    family: str, centre: float
) -> None:
    """6,000 rows are sampled in float32, in which these columns underflow or overflow."""
    for decades, lam in ((12.0, 2e-6), (40.0, 1e-8)):
        objective = badly_scaled(family, n=6000, width=6, decades=decades, centre=centre, lam=lam, seed=3)
        solution = minimise(objective, objective.anchor, target=1e-2, settings=SolverSettings(max_steps=15))
        assert bool(torch.isfinite(solution.w).all())
        here = objective.evaluate(solution.w)
        assert (solution.outcome is Outcome.CERTIFIED) == ((here.norm + here.rounding) / lam <= 1e-2)


def diagonal(entries: list[float]) -> tuple[torch.Tensor, Quadratic]:
    hessian = torch.diag(torch.tensor(entries, dtype=torch.float64))
    return hessian, Quadratic(torch.ones(len(entries), dtype=torch.float64), lambda v: hessian @ v)


@pytest.mark.parametrize("factor", [0.0, -1.0, math.nan, math.inf])
def test_an_inverse_that_is_not_positive_is_replaced_by_the_residual(factor: float) -> None:
    hessian, plain = diagonal([1.0, 2.0, 3.0])
    steered = Quadratic(plain.gradient, plain.product, lambda r: factor * r)
    proposal = steihaug(steered, 100.0, tolerance=1e-10, limit=50)
    assert torch.allclose(hessian @ proposal.step, -plain.gradient, atol=1e-9)
    assert proposal.drop > 0


def test_an_inverse_that_underflows_on_the_way_does_not_divide_by_zero() -> None:
    _, plain = diagonal([1.0, 1e3, 1e6])
    steered = Quadratic(
        plain.gradient, plain.product, lambda r: r if float(torch.linalg.vector_norm(r)) > 1.2 else 0 * r
    )
    proposal = steihaug(steered, math.inf, tolerance=1e-9, limit=200)
    assert proposal.residual <= 1e-9


def test_a_residual_whose_square_underflows_ends_the_solve_with_no_step() -> None:
    _, plain = diagonal([1.0, 2.0])
    faint = Quadratic(plain.gradient * 1e-170, plain.product)
    proposal = steihaug(faint, 1.0, tolerance=0.0, limit=50)
    assert torch.equal(proposal.step, torch.zeros(2, dtype=torch.float64))
    assert not proposal.drop > 0


@pytest.mark.parametrize("radius", [1e-200, 1e-160, 1.0, 1e160])
def test_the_edge_of_the_region_is_met_at_any_scale(radius: float) -> None:
    """Squares of the radius and of the direction both leave the range of doubles."""
    falling = Quadratic(torch.tensor([1e-140, 2e-140], dtype=torch.float64), lambda v: -v)
    proposal = steihaug(falling, radius, tolerance=0.0, limit=5)
    assert proposal.boundary
    assert float(torch.linalg.vector_norm(proposal.step / radius)) == pytest.approx(1.0)

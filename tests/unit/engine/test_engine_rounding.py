"""The rounding bound against 60-digit arithmetic, over the scales that user data may have."""

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.engine.engine_problems import make_problem, random_point
from worker.engine.bounds import reachable, strongly_convex_distance
from worker.engine.families import Logistic, Ridge, Softmax
from worker.engine.linear import LinearObjective
from worker.engine.rounding import gamma
from worker.engine.rows import ArrayRows
from worker.engine.trust_region import Outcome, minimise


def exact_norm(objective: LinearObjective, w: torch.Tensor, digits: int = 60) -> mpmath.mpf:
    """Return ‖∇f(w)‖ for exactly the doubles the engine received."""
    ((x, y),) = objective.rows.chunks(objective.rows.count)
    with mpmath.workdps(digits):
        X = [[mpmath.mpf(v) for v in row] + ([mpmath.mpf(1)] if objective.bias else []) for row in x.tolist()]
        W = [[mpmath.mpf(v) for v in row] for row in objective.grouped(w).tolist()]
        A = [[mpmath.mpf(v) for v in row] for row in objective.grouped(objective.anchor).tolist()]
        G = [[mpmath.mpf(0)] * len(X[0]) for _ in W]
        for row, target in zip(X, y.tolist(), strict=True):
            z = [mpmath.fdot(row, weights) for weights in W]
            for c, q in enumerate(_residual(objective, z, target)):
                for j, value in enumerate(row):
                    G[c][j] += q * value
        n = len(X)
        squares = [
            (G[c][j] / n + mpmath.mpf(objective.lam) * (W[c][j] - A[c][j])) ** 2
            for c in range(len(W))
            for j in range(len(X[0]))
        ]
        return mpmath.sqrt(mpmath.fsum(squares))


def _residual(objective: LinearObjective, z: list[mpmath.mpf], target: float) -> list[mpmath.mpf]:
    if isinstance(objective, Softmax):
        top = max(z)
        powers = [mpmath.exp(value - top) for value in z]
        total = mpmath.fsum(powers)
        return [power / total - (c == int(target)) for c, power in enumerate(powers)]
    if isinstance(objective, Logistic):
        return [1 / (1 + mpmath.exp(-z[0])) - int(target)]
    return [z[0] - mpmath.mpf(target)]


@given(
    family=st.sampled_from(["softmax", "logistic", "ridge"]),
    seed=st.integers(0, 10_000),
    feature_power=st.integers(-8, 8),
    weight_power=st.integers(-6, 6),
    lam_power=st.integers(-9, 1),
    bias=st.booleans(),
)
@settings(max_examples=120, deadline=None)
def test_the_computed_norm_is_within_the_bound_of_the_exact_one(
    family: str, seed: int, feature_power: int, weight_power: int, lam_power: int, bias: bool
) -> None:
    objective = make_problem(
        family,
        n=7,
        width=4,
        lam=10.0**lam_power,
        bias=bias,
        seed=seed,
        scale=10.0**feature_power,
    )
    w = random_point(objective, seed=seed, scale=10.0**weight_power)
    certified = objective.certified_gradient(w)
    with mpmath.workdps(60):
        assert abs(certified.norm - exact_norm(objective, w)) <= certified.rounding


@given(seed=st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_cancellation_between_rows_does_not_escape_the_bound(seed: int) -> None:
    rng = np.random.default_rng(seed)
    half = rng.standard_normal((4, 3)) * 10.0 ** rng.integers(-6, 7, (4, 3))
    features = np.vstack([half, -half * (1 + 1e-15)])
    objective = Ridge(ArrayRows(features, np.full(8, 3.0)), 1e-3, bias=False)
    w = torch.from_numpy(rng.standard_normal(3) * 1e-3)
    certified = objective.certified_gradient(w)
    with mpmath.workdps(60):
        assert abs(certified.norm - exact_norm(objective, w)) <= certified.rounding


def test_the_bound_is_small_enough_to_be_useful() -> None:
    objective = make_problem("softmax", n=5000, width=40)
    certified = objective.certified_gradient(random_point(objective))
    assert 0 < certified.rounding < 1e-10


def test_the_bound_is_not_luck_it_covers_errors_that_happen() -> None:
    ratios = []
    for seed in range(30):
        objective = make_problem("softmax", n=6, width=4, seed=seed, scale=100.0)
        w = random_point(objective, seed=seed)
        certified = objective.certified_gradient(w)
        with mpmath.workdps(60):
            ratios.append(float(abs(certified.norm - exact_norm(objective, w)) / certified.rounding))
    assert 0 < max(ratios) <= 1


def test_features_too_large_for_squares_give_an_infinite_bound_not_a_wrong_one() -> None:
    objective = make_problem("softmax", scale=1e200)
    certified = objective.certified_gradient(random_point(objective))
    assert certified.norm == certified.rounding == float("inf")


def test_squares_lost_to_underflow_are_not_certified_away() -> None:
    rows = ArrayRows(np.zeros((1, 2)), np.zeros(1))
    objective = Ridge(rows, 1e-160, bias=False)
    w = torch.tensor([0.01, 0.01], dtype=torch.float64)  # ŵ = 0
    solution = minimise(objective, w, target=1e-2)
    assert solution.distance >= float(torch.linalg.vector_norm(solution.w))
    assert solution.outcome is not Outcome.CERTIFIED


@given(
    seed=st.integers(0, 10_000),
    feature_power=st.integers(-170, 140),
    weight_power=st.integers(-170, 0),
    target_power=st.integers(-170, 0),
    lam_power=st.integers(-30, 6),
)
@settings(max_examples=120, deadline=None)
def test_the_bound_covers_underflow_at_every_scale(
    seed: int, feature_power: int, weight_power: int, target_power: int, lam_power: int
) -> None:
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((5, 3)) * 10.0**feature_power
    targets = rng.standard_normal(5) * 10.0**target_power
    objective = Ridge(ArrayRows(features, targets), 10.0**lam_power, bias=False)
    w = torch.from_numpy(rng.standard_normal(3) * 10.0**weight_power)
    certified = objective.certified_gradient(w)
    with mpmath.workdps(400):
        assert abs(certified.norm - exact_norm(objective, w, digits=400)) <= certified.rounding


def test_gamma_is_infinite_where_it_proves_nothing() -> None:
    assert gamma(10) == pytest.approx(10 * 2**-53)
    assert gamma(2.0**53) == float("inf")


def test_distance_is_rounded_up_and_refuses_a_missing_floor() -> None:
    with mpmath.workdps(60):
        exact = (mpmath.mpf(1e-6) + mpmath.mpf(1e-13)) / mpmath.mpf(1e-4)
        assert strongly_convex_distance(gradient_norm=1e-6, rounding=1e-13, floor=1e-4) >= exact
    assert strongly_convex_distance(gradient_norm=float("nan"), rounding=0.0, floor=1.0) == float("inf")
    with pytest.raises(ValueError, match="floor"):
        strongly_convex_distance(gradient_norm=1.0, rounding=0.0, floor=0.0)


def test_a_target_below_the_rounding_is_not_reachable() -> None:
    assert reachable(target=1e-2, rounding=1e-12, floor=1e-4)
    assert not reachable(target=1e-8, rounding=1e-12, floor=1e-4)

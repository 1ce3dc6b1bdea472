"""LiSSA against dense inverses, and how it reports failure."""

import math

import pytest
import torch
from torch.testing import assert_close

from tests.unit.engine.baseline_problems import dense_hessian
from tests.unit.engine.engine_problems import make_problem, random_point
from worker.engine.baselines.lipschitz import largest_eigenvalue
from worker.engine.baselines.lissa import LissaSettings, lissa


def test_power_iteration_approaches_the_largest_eigenvalue_from_below() -> None:
    objective = make_problem("softmax")
    w = random_point(objective)
    largest = float(torch.linalg.eigvalsh(dense_hessian(objective, w))[-1])
    few = largest_eigenvalue(objective.hessian(w), w, iterations=2)
    many = largest_eigenvalue(objective.hessian(w), w, iterations=200)
    assert few < many <= largest * (1 + 1e-12)
    assert many == pytest.approx(largest, rel=1e-3)


@pytest.mark.parametrize("damping", [0.0, 0.5])
def test_over_all_rows_it_converges_to_the_inverse(damping: float) -> None:
    objective = make_problem("logistic", lam=0.2)
    w, v = random_point(objective), random_point(objective, seed=3)
    dense = dense_hessian(objective, w) + damping * torch.eye(len(w), dtype=torch.float64)
    result = lissa(objective, w, v, LissaSettings(chains=3, steps=300, batch=1000), damping=damping)
    assert_close(result.solution, torch.linalg.solve(dense, v), rtol=1e-8, atol=1e-10)
    assert result.relative_residual < 1e-8


def test_few_steps_leave_the_error_of_a_truncated_series() -> None:
    objective = make_problem("ridge", lam=0.2)
    w, v = random_point(objective), random_point(objective, seed=3)
    dense = dense_hessian(objective, w)
    result = lissa(objective, w, v, LissaSettings(chains=1, steps=4, batch=1000, scale=10.0))
    # x/scale = (1/s)·Σ_{j ≤ 4} (I - H/s)^j·v
    step = torch.eye(len(w), dtype=torch.float64) - dense / 10.0
    series = sum(torch.linalg.matrix_power(step, j) @ v for j in range(5)) / 10.0
    assert_close(result.solution, series)
    assert result.relative_residual == pytest.approx(
        float(torch.linalg.vector_norm(dense @ series - v) / torch.linalg.vector_norm(v))
    )


def test_more_chains_average_the_sampling_away() -> None:
    objective = make_problem("logistic", n=400, lam=0.2)
    w, v = random_point(objective), random_point(objective, seed=3)
    exact = torch.linalg.solve(dense_hessian(objective, w), v)

    def error(chains: int) -> float:
        settings = LissaSettings(chains=chains, steps=60, batch=4, scale=4.0)
        return float(torch.linalg.vector_norm(lissa(objective, w, v, settings).solution - exact))

    assert error(32) < error(1) / 2


def test_a_scale_too_small_is_reported_as_divergence_not_as_an_answer() -> None:
    objective = make_problem("ridge", lam=0.1)
    w, v = random_point(objective), random_point(objective, seed=3)
    largest = float(torch.linalg.eigvalsh(dense_hessian(objective, w))[-1])
    result = lissa(objective, w, v, LissaSettings(chains=2, steps=200, batch=1000, scale=largest / 3))
    assert result.diverged
    assert result.diverged_at is not None
    assert result.diverged_at < 200
    assert not bool(result.solution.any())
    assert result.relative_residual == 1.0


def test_passes_count_the_rows_touched() -> None:
    objective = make_problem("logistic", n=400, lam=0.2)
    w, v = random_point(objective), random_point(objective, seed=3)
    result = lissa(objective, w, v, LissaSettings(chains=2, steps=10, batch=40, scale=4.0))
    # two chains of ten steps that look at a tenth of the rows twice, and the residual over all rows
    assert result.passes == pytest.approx(2 * 10 * 2 * 0.1 + 2)
    assert math.isfinite(result.seconds)

"""Guo et al. (2020): the step, the bound on its residual, and when it does not apply."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from tests.unit.engine.baseline_problems import Wavy, dense_hessian, erasure
from tests.unit.engine.engine_problems import make_problem, random_point
from worker.engine.baselines.guo2020 import GuoSettings, loss_perturbation, newton_step, unlearn
from worker.engine.baselines.result import Outcome

WORST = GuoSettings(form="worst-case")


@pytest.mark.parametrize("family", ["softmax", "logistic", "ridge"])
def test_the_step_is_the_dense_newton_step_over_the_rows_that_stay(family: str) -> None:
    case = erasure(family)
    gradient = case.kept.gradient(case.start)
    expected = case.start - torch.linalg.solve(dense_hessian(case.kept, case.start), gradient)
    assert_close(newton_step(case.kept, case.start), expected, rtol=1e-8, atol=1e-10)
    assert_close(unlearn(case.kept, case.start, erased=case.erased).w, expected, rtol=1e-7, atol=1e-8)


def test_one_step_solves_a_quadratic_and_the_bound_says_so() -> None:
    case = erasure("ridge")
    result = unlearn(case.kept, case.start, erased=case.erased)
    assert result.gradient_norm < 1e-10
    assert result.certifiable
    assert case.distance(result.w) <= result.distance + 1e-8
    assert result.distance < 1e-6


@given(
    seed=st.integers(0, 200),
    family=st.sampled_from(["softmax", "logistic"]),
    lam=st.floats(0.02, 0.5),
    erased=st.integers(1, 20),
)
@settings(max_examples=15, deadline=None)
def test_both_bounds_hold_and_the_one_from_data_is_tighter(
    seed: int, family: str, lam: float, erased: int
) -> None:
    case = erasure(family, seed=seed, lam=lam, erased=erased)
    from_data = unlearn(case.kept, case.start, erased=erased)
    worst = unlearn(case.kept, case.start, erased=erased, settings=WORST)
    assert from_data.certifiable
    assert worst.certifiable
    residual = from_data.gradient_norm - from_data.rounding
    assert residual <= float(from_data.constants["data-dependent"] or 0) + float(
        from_data.constants["unsolved"] or 0
    )
    assert case.distance(from_data.w) <= from_data.distance + 2e-9 <= worst.distance + 4e-9


def test_rescaled_rows_are_covered_by_the_rescaled_bound() -> None:
    objective = make_problem("softmax", lam=0.1)
    start = random_point(objective, scale=0.1)
    refused = unlearn(objective, start, erased=3)
    assert refused.verdict.outcome is Outcome.LONG_ROWS
    assert "longer than 1" in refused.verdict.reason
    assert refused.distance == math.inf
    result = unlearn(objective, start, erased=3, settings=GuoSettings(row_bound=10.0))
    assert result.certifiable
    assert result.posterior is not None
    assert result.posterior <= result.distance


def test_the_worst_case_needs_the_minimiser_it_speaks_of() -> None:
    case = erasure("logistic")
    elsewhere = case.start + 3.0
    result = unlearn(case.kept, elsewhere, erased=1, settings=WORST)
    assert result.verdict.outcome is Outcome.NOT_A_MINIMISER
    assert not result.certifiable
    assert unlearn(case.kept, elsewhere, erased=1).certifiable  # the form from data does not


def test_a_solve_cut_short_is_paid_for_in_the_bound() -> None:
    case = erasure("softmax", erased=15)
    short = unlearn(case.kept, case.start, erased=15, settings=GuoSettings(max_products=1))
    assert float(short.constants["unsolved"] or 0) > 1e-4
    assert case.distance(short.w) <= short.distance
    residual = float(short.constants["data-dependent"] or 0) + float(short.constants["unsolved"] or 0)
    assert short.gradient_norm <= residual
    assert short.distance == pytest.approx(residual / case.kept.lam)


def test_networks_are_refused() -> None:
    result = unlearn(Wavy(lam=1.0, waves=0.1), torch.ones(4, dtype=torch.float64), erased=1)
    assert result.verdict.outcome is Outcome.NOT_CONVEX
    assert not result.certifiable


def test_the_publications_own_noise_grows_with_the_residual_and_the_demand() -> None:
    base = loss_perturbation(residual=1.0, epsilon=1.0, delta=1e-5)
    assert loss_perturbation(residual=2.0, epsilon=1.0, delta=1e-5) == 2 * base
    assert loss_perturbation(residual=1.0, epsilon=0.5, delta=1e-5) == 2 * base
    assert 1.5 * math.exp(-(base**2) / 2) == pytest.approx(1e-5)

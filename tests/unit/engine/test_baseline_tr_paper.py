"""The paper's algorithm: cap, acceptance, radius, fallback and the three bounds it reports."""

import math
from dataclasses import replace
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.engine.baseline_problems import Wavy, dense_hessian, erasure
from tests.unit.engine.engine_problems import make_problem, random_point
from worker.engine.baselines import tr_bounds
from worker.engine.baselines.lissa import LissaSettings
from worker.engine.baselines.result import Outcome
from worker.engine.baselines.tr_paper import PaperSettings, unlearn

LISSA = LissaSettings(chains=2, steps=150, batch=1000)
CG, BY_LISSA = PaperSettings(), PaperSettings(subproblem="lissa", solver=LISSA)


@given(
    seed=st.integers(0, 500),
    family=st.sampled_from(["softmax", "logistic", "ridge"]),
    tau=st.floats(0.1, 1.0),
    growth=st.floats(1.0, 1.5),
    radius=st.floats(0.01, 10.0),
    steps=st.integers(1, 12),
    method=st.sampled_from(["cg", "lissa"]),
)
@settings(max_examples=20, deadline=None)
def test_what_the_paper_states_holds_on_strongly_convex_problems(
    seed: int,
    family: str,
    tau: float,
    growth: float,
    radius: float,
    steps: int,
    method: Literal["cg", "lissa"],
) -> None:
    case = erasure(family, seed=seed, erased=20)
    chosen = replace(BY_LISSA, tau=tau, growth=growth, initial_radius=radius, steps=steps)
    result = unlearn(case.kept, case.start, settings=replace(chosen, subproblem=method))
    assert result.certifiable
    assert len(result.steps) == steps
    # Corollary 1 as counted here
    assert case.distance(result.w) <= result.distance + 1e-9
    previous = 0.0
    for step in result.steps:
        assert step.length <= step.capped * (1 + 1e-12)
        assert step.capped <= tau * step.gradient_norm / step.lipschitz * (1 + 1e-12)
        assert step.capped <= step.radius
        # Proposition 3, and that its bound never falls
        assert step.gradient_norm <= step.gradient_bound * (1 + 1e-9)
        assert step.gradient_bound >= previous
        assert 0 <= step.reduction_floor <= step.drop
        previous = step.gradient_bound
    first, last = result.steps[0], result.steps[-1]
    assert last.gradient_bound == pytest.approx(
        first.gradient_norm
        + max((step.lipschitz for step in result.steps[:-1]), default=0.0)
        * sum(step.capped for step in result.steps[:-1])
    )
    assert previous <= float(result.constants["U_T_before_run"] or 0) * (1 + 1e-9)


def test_the_curvature_estimate_starts_at_the_power_iterations_and_grows_by_alpha() -> None:
    objective = make_problem("softmax")
    start = random_point(objective)
    result = unlearn(objective, start, settings=replace(CG, growth=1.5, power_iterations=100))
    largest = float(torch.linalg.eigvalsh(dense_hessian(objective, start))[-1])
    assert result.steps[0].lipschitz == pytest.approx(largest, rel=1e-2)
    for before, after in zip(result.steps, result.steps[1:], strict=False):
        assert after.lipschitz == pytest.approx(1.5 * before.lipschitz)
    assert result.constants["L_max"] == result.steps[-1].lipschitz


def test_the_radius_follows_the_ratio() -> None:
    # the sine makes the model wrong at this distance, so that all three branches are taken
    objective = Wavy(lam=0.3, waves=1.0)
    chosen = replace(CG, steps=12, initial_radius=4.0, tau=1.0, accept=0.95, expand=1.02, power_iterations=1)
    result = unlearn(objective, torch.tensor([0.4, -3.0, 2.8, 0.2], dtype=torch.float64), settings=chosen)
    kinds = set()
    for before, after in zip(result.steps, result.steps[1:], strict=False):
        if before.ratio >= 1.02:
            kinds.add("grow")
            assert after.radius == 2.0 * before.radius
        elif before.ratio >= 0.95:
            kinds.add("keep")
            assert after.radius == before.radius
        else:
            kinds.add("shrink")
            assert not before.accepted
            assert after.gradient_norm == before.gradient_norm
            assert after.radius == 0.5 * before.radius
    assert kinds == {"grow", "keep", "shrink"}


def test_only_accepted_steps_that_the_radius_did_not_cut_are_counted() -> None:
    case = erasure("softmax", erased=20)
    narrow = unlearn(case.kept, case.start, settings=replace(CG, initial_radius=1e-4, grow=1.0 + 1e-9))
    assert all(step.accepted for step in narrow.steps)
    assert narrow.constants["steps_accepted"] == 5
    assert narrow.constants["steps_counted"] == 0
    # the printed formula would have claimed five contractions; the truth is that nearly nothing moved
    assert narrow.distance == pytest.approx(narrow.steps[0].gradient_norm / case.kept.lam)
    assert float(narrow.constants["corollary_1_all_steps"] or 0) < narrow.distance
    wide = unlearn(case.kept, case.start, settings=replace(CG, initial_radius=100.0))
    assert wide.constants["steps_counted"] == 5


def test_an_estimate_of_l_that_is_too_small_earns_no_contraction() -> None:
    objective = make_problem("ridge", lam=0.1, scale=3.0)
    start = random_point(objective)
    blind = unlearn(objective, start, settings=replace(CG, power_iterations=1, initial_radius=1e6, tau=1.0))
    largest = float(torch.linalg.eigvalsh(dense_hessian(objective, start))[-1])
    for step in blind.steps:
        if step.counted:
            assert step.drop >= step.gradient_norm**2 / (2 * step.lipschitz) * (1 - 1e-9)
    assert blind.steps[0].lipschitz < largest


def test_cauchy_takes_over_when_lissa_diverges() -> None:
    case = erasure("softmax", erased=20)
    broken = replace(BY_LISSA, solver=replace(LISSA, scale=1e-3))
    result = unlearn(case.kept, case.start, settings=broken)
    assert all(step.fallback for step in result.steps)
    assert all(step.accepted for step in result.steps)
    assert case.kept.value(result.w) < case.kept.value(case.start)


def test_a_rejected_step_bumps_the_damping_only_where_asked() -> None:
    objective, start = Wavy(lam=0.3, waves=1.0), torch.tensor([0.4, -3.0, 2.8, 0.2], dtype=torch.float64)
    chosen = replace(CG, steps=6, initial_radius=4.0, tau=1.0, accept=0.999, expand=2.0, power_iterations=1)
    plain = unlearn(objective, start, settings=chosen)
    bumped = unlearn(objective, start, settings=replace(chosen, bump=5.0))
    rejected = next(step.index for step in plain.steps if not step.accepted)
    after, damped = plain.steps[rejected + 1], bumped.steps[rejected + 1]
    assert after.capped == damped.capped
    assert damped.drop < after.drop


def test_without_a_curvature_floor_there_is_no_bound() -> None:
    objective, start = Wavy(lam=0.5, waves=1.0), torch.full((4,), 2.0, dtype=torch.float64)
    refused = unlearn(objective, start)
    assert refused.verdict.outcome is Outcome.NO_FLOOR
    assert refused.distance == math.inf
    assert all(math.isinf(step.inverse_error) or step.inverse_error == 0 for step in refused.steps)
    # around w = 2 the curvature is at least 0.5 - cos 1.5
    given_floor = unlearn(objective, start, floor=0.42)
    assert given_floor.certifiable
    assert given_floor.assumed
    truth = torch.full((4,), 1.8954942670339809, dtype=torch.float64)
    assert float(torch.linalg.vector_norm(given_floor.w - truth)) <= given_floor.distance


def test_a_start_that_is_not_finite_certifies_nothing() -> None:
    objective = make_problem("ridge")
    result = unlearn(objective, random_point(objective) * 1e200)
    assert result.verdict.outcome is Outcome.NON_FINITE
    assert not result.certifiable


def test_settings_outside_the_papers_ranges_are_refused() -> None:
    for wrong in ({"tau": 1.5}, {"growth": 0.9}, {"kappa": 0.0}, {"steps": 0}):
        with pytest.raises(ValueError, match="need"):
            PaperSettings(**wrong)


def test_before_the_run_the_gradient_bound_can_only_grow_geometrically() -> None:
    assert tr_bounds.blind_gradient_bound(first=3.0, tau=0.8, growth=1.0, steps=5) == pytest.approx(
        3 * 1.8**5
    )
    assert tr_bounds.blind_gradient_bound(first=3.0, tau=0.8, growth=1.2, steps=5) > 3 * 1.8**5


@pytest.mark.parametrize("name", ["gradient_error", "product_error", "inverse_error"])
def test_every_error_lowers_the_predicted_reductions_floor_to_nothing_at_last(name: str) -> None:
    exact = {"gradient_error": 0.0, "product_error": 0.0, "inverse_error": 0.0}

    def floor(error: float) -> float:
        return tr_bounds.reduction_floor(
            estimate=1.0, radius=0.5, gradient_bound=2.0, curvature=3.0, **(exact | {name: error})
        )

    assert floor(0.0) == 1.0
    assert floor(0.0) > floor(0.01) > floor(0.02)
    assert floor(1e6) == 0.0

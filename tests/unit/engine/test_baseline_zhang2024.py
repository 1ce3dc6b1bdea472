"""Zhang et al. (2024): the damped step, its worst-case bound and its conditions."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from tests.unit.engine.baseline_problems import Wavy, dense_hessian, erasure
from worker.engine.baselines.lissa import LissaSettings
from worker.engine.baselines.result import Outcome
from worker.engine.baselines.zhang2024 import Lipschitz, ZhangSettings, unlearn

SOLVER = LissaSettings(chains=1, steps=400, batch=1000)
SETTINGS = ZhangSettings(constraint=60.0, damping=0.2, solver=SOLVER)


@pytest.mark.parametrize("family", ["softmax", "logistic", "ridge"])
def test_the_step_is_the_dense_damped_step(family: str) -> None:
    case = erasure(family)
    damped = dense_hessian(case.kept, case.start) + 0.2 * torch.eye(len(case.start), dtype=torch.float64)
    expected = case.start - torch.linalg.solve(damped, case.kept.gradient(case.start))
    assert_close(unlearn(case.kept, case.start, SETTINGS).w, expected, rtol=1e-8, atol=1e-9)


@given(
    seed=st.integers(0, 200),
    family=st.sampled_from(["softmax", "logistic", "ridge"]),
    damping=st.floats(0.0, 3.0),
    steps=st.integers(5, 100),
)
@settings(max_examples=15, deadline=None)
def test_the_bound_holds_also_when_the_recursion_was_cut_short(
    seed: int, family: str, damping: float, steps: int
) -> None:
    case = erasure(family, seed=seed)
    result = unlearn(
        case.kept, case.start, replace(SETTINGS, damping=damping, solver=replace(SOLVER, steps=steps))
    )
    assert result.certifiable
    assert case.distance(result.w) <= result.distance


def test_the_bound_is_the_published_formula_and_the_measured_residual() -> None:
    case = erasure("logistic")
    result = unlearn(case.kept, case.start, replace(SETTINGS, constraint=50.0, residual_gradient=0.3))
    third, lowest = 0.25, 0.05
    formula = (2 * 50.0 * (third * 50.0 + 0.2) + 0.3) / (0.2 + lowest)
    assert result.constants["theorem_3_4"] == pytest.approx(formula)
    assert result.distance == pytest.approx(formula + float(result.constants["solve_error"] or 0))


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        ({"constraint": 1e-3}, Outcome.OUTSIDE_CONSTRAINT),
        ({"row_bound": 0.5}, Outcome.LONG_ROWS),
        ({"solver": replace(SOLVER, scale=1e-3)}, Outcome.DIVERGED),
        ({"damping": -0.1}, Outcome.DAMPING_TOO_SMALL),
    ],
)
def test_each_broken_condition_is_named_and_certifies_nothing(
    change: dict[str, Any], outcome: Outcome
) -> None:
    case = erasure("softmax")
    result = unlearn(case.kept, case.start, replace(SETTINGS, **change))
    assert result.verdict.outcome is outcome
    assert result.verdict.reason
    assert not result.certifiable


def test_the_retrained_weights_must_be_within_the_constraint_too() -> None:
    case = erasure("ridge", erased=20)
    start = torch.zeros_like(case.start)
    need = float(torch.linalg.vector_norm(case.truth))
    result = unlearn(case.kept, start, replace(SETTINGS, constraint=0.9 * need))
    assert result.verdict.outcome is Outcome.OUTSIDE_CONSTRAINT
    assert "retrained" in result.verdict.reason


def test_without_convexity_it_needs_constants_and_a_damping_above_them() -> None:
    objective, start = Wavy(lam=0.5, waves=1.0), torch.full((4,), 2.0, dtype=torch.float64)
    assert unlearn(objective, start, SETTINGS).verdict.outcome is Outcome.NO_LIPSCHITZ
    known = replace(SETTINGS, lipschitz=Lipschitz(gradient=1.5, hessian=1.0))
    assert unlearn(objective, start, known).verdict.outcome is Outcome.DAMPING_TOO_SMALL
    result = unlearn(objective, start, replace(known, damping=2.0))
    assert result.certifiable
    assert any("not checked" in line for line in result.assumed)
    # the nearest stationary point: λw = sin w
    truth = torch.full((4,), 1.8954942670339809, dtype=torch.float64)
    assert float(torch.linalg.vector_norm(objective.gradient(truth))) < 1e-12
    assert float(torch.linalg.vector_norm(result.w - truth)) <= result.distance

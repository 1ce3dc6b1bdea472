"""Certification in rounds: the solver continues where B2 needs it, and no work is repeated."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.unit.engine.certified_networks import DENSE, minimiser, network_problem, seeded
from worker.engine.networks import certify_rounds
from worker.engine.networks.certify_rounds import RoundsResult, certify_in_rounds
from worker.engine.networks.kantorovich import KantorovichResult, Verdict, certify, estimate_lipschitz
from worker.engine.networks.lipschitz import LipschitzBound
from worker.engine.networks.objective import NetworkObjective
from worker.engine.objective import Evaluation
from worker.engine.trust_region import Outcome, SolverSettings, minimise

SPEC, LAMBDA, TARGET = DENSE[0], 1.0, 1e-3


def near(
    offset: float, *, known: Evaluation | None = None
) -> tuple[NetworkObjective, torch.Tensor, RoundsResult]:
    objective = network_problem(SPEC, seed=0, lam=LAMBDA)
    exact = minimiser(objective, objective.anchor)
    step = torch.randn(len(exact), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    result = certify_in_rounds(
        objective,
        SPEC,
        exact + offset * step / step.norm(),
        target=TARGET,
        failure_probability=1e-9,
        settings=SolverSettings(),
        known=known,
        gaussian=seeded(3),
    )
    return objective, exact, result


def test_a_point_too_far_is_left_before_anything_is_measured_over_all_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rounds: list[KantorovichResult] = []
    original = certify

    def counted(*args: object, **kwargs: object) -> KantorovichResult:
        rounds.append(original(*args, **kwargs))  # type: ignore[arg-type]
        return rounds[-1]

    monkeypatch.setattr(certify_rounds, "certify", counted)
    _, exact, result = near(0.3)
    assert [it.verdict for it in rounds] == [Verdict.CERTIFIED], "a sample told that it was too far"
    assert [solve.outcome for solve in result.solves] == [Outcome.REACHED]
    assert float((result.w - exact).norm()) <= result.kantorovich.distance <= TARGET


def test_a_point_near_enough_is_certified_where_it_is() -> None:
    _, exact, result = near(1e-7)
    assert result.kantorovich.verdict is Verdict.CERTIFIED
    assert not result.solves
    assert float((result.w - exact).norm()) <= result.kantorovich.distance


def test_a_gradient_that_is_known_saves_the_pass_over_it() -> None:
    objective, _, alone = near(1e-7)
    there = objective.evaluate(alone.w)
    _, _, told = near(1e-7, known=there)
    assert told.passes == pytest.approx(alone.passes - 1)
    assert told.kantorovich.distance == alone.kantorovich.distance


def test_a_further_solve_does_not_repeat_the_pass_at_its_start() -> None:
    objective = network_problem(SPEC, seed=0, lam=LAMBDA)
    exact = minimiser(objective, objective.anchor)
    step = torch.randn(len(exact), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    there = objective.evaluate(exact + 0.3 * step / step.norm())
    _, _, alone = near(0.3)
    _, _, told = near(0.3, known=there)
    assert len(alone.solves) == len(told.solves) == 1
    # Certification evaluated the start itself if nobody had. The solve uses that evaluation in both cases.
    assert told.solves[0].passes == alone.solves[0].passes
    assert told.passes == pytest.approx(alone.passes - 1)
    again = minimise(
        objective, exact + 0.3 * step / step.norm(), target=TARGET, working_floor=LAMBDA, known=there
    )
    fresh = minimise(objective, exact + 0.3 * step / step.norm(), target=TARGET, working_floor=LAMBDA)
    assert again.passes == pytest.approx(fresh.passes - 1)
    assert torch.equal(again.w, fresh.w)


def test_what_a_sample_says_is_never_what_certifies(monkeypatch: pytest.MonkeyPatch) -> None:
    """An estimate of M that is too small triggers no further solve. The bound over all rows does."""
    original = estimate_lipschitz

    def blind(*args: Any) -> LipschitzBound:
        guess = original(*args)
        return replace(guess, value=1e-12)

    monkeypatch.setattr(certify_rounds, "estimate_lipschitz", blind)
    _, exact, result = near(0.02)
    assert result.kantorovich.verdict is Verdict.CERTIFIED
    assert result.solves
    assert result.kantorovich.h < 0.5
    assert math.isfinite(result.kantorovich.distance)
    assert float((result.w - exact).norm()) <= result.kantorovich.distance <= TARGET

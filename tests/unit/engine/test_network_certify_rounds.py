"""From where a solve ended to a certified point: nearer where B2 asks for it, and no work done twice."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from certified_networks import DENSE, minimiser, network_problem, seeded

from worker.engine.networks import nearing
from worker.engine.networks.kantorovich import Kantorovich, Verdict
from worker.engine.networks.lipschitz import LipschitzBound
from worker.engine.networks.nearing import Neared, certify_nearer
from worker.engine.networks.objective import NetworkObjective
from worker.engine.objective import CertifiedGradient
from worker.engine.trust_region import Outcome, SolverSettings

SPEC, LAMBDA, TARGET = DENSE[0], 1.0, 1e-3


def near(
    offset: float, *, gradient: CertifiedGradient | None = None
) -> tuple[NetworkObjective, torch.Tensor, Neared]:
    objective = network_problem(SPEC, seed=0, lam=LAMBDA)
    exact = minimiser(objective, objective.anchor)
    step = torch.randn(len(exact), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = certify_nearer(
        objective,
        SPEC,
        exact + offset * step / step.norm(),
        target=TARGET,
        failure_probability=1e-9,
        settings=SolverSettings(),
        gradient=gradient,
        gaussian=seeded(3),
    )
    return objective, exact, found


def test_a_point_too_far_is_left_before_anything_is_measured_over_all_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rounds: list[Kantorovich] = []
    original = nearing.certify

    def counted(*args: object, **kwargs: object) -> Kantorovich:
        rounds.append(original(*args, **kwargs))  # type: ignore[arg-type]
        return rounds[-1]

    monkeypatch.setattr(nearing, "certify", counted)
    _, exact, found = near(0.3)
    assert [it.verdict for it in rounds] == [Verdict.CERTIFIED], "a sample told that it was too far"
    assert [solve.outcome for solve in found.solves] == [Outcome.REACHED]
    assert float((found.w - exact).norm()) <= found.found.distance <= TARGET


def test_a_point_near_enough_is_certified_where_it_is() -> None:
    _, exact, found = near(1e-7)
    assert found.found.verdict is Verdict.CERTIFIED
    assert not found.solves
    assert float((found.w - exact).norm()) <= found.found.distance


def test_a_gradient_that_is_known_saves_the_pass_over_it() -> None:
    objective, _, alone = near(1e-7)
    there = objective.evaluate(alone.w)
    _, _, told = near(1e-7, gradient=CertifiedGradient(norm=there.norm, rounding=there.rounding))
    assert told.passes == pytest.approx(alone.passes - 1)
    assert told.found.distance == alone.found.distance


def test_what_a_sample_says_is_never_what_certifies(monkeypatch: pytest.MonkeyPatch) -> None:
    """A guess of M that is far too small sends nobody nearer; the bound over all rows still does."""
    original = nearing.guessed_lipschitz

    def blind(*args: Any) -> LipschitzBound:
        guess = original(*args)
        return replace(guess, value=1e-12)

    monkeypatch.setattr(nearing, "guessed_lipschitz", blind)
    _, exact, found = near(0.02)
    assert found.found.verdict is Verdict.CERTIFIED
    assert found.solves
    assert found.found.h < 0.5
    assert math.isfinite(found.found.distance)
    assert float((found.w - exact).norm()) <= found.found.distance <= TARGET

"""B2 against dense Hessians and exact minimisers, and refusals that name what is missing."""

import math
from fractions import Fraction

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from lethe.certificate.evidence_check import curvature_floor as recomputed_floor
from lethe.certificate.evidence_check import distance_b2
from tests.unit.engine.certified_networks import (
    CONVOLUTIONAL,
    DENSE,
    dense_hessian,
    minimiser,
    network_problem,
    seeded,
)
from worker.batch.certify import curvature_evidence
from worker.engine.bounds import kantorovich_distance, needed_floor
from worker.engine.networks.advice import smallest_certifiable_lambda
from worker.engine.networks.architectures import Mlp, Spec
from worker.engine.networks.kantorovich import KantorovichResult, Verdict, certify
from worker.engine.networks.objective import NetworkObjective

positive = st.floats(-12, 6).map(lambda power: 10**power)


@given(gradient=positive, rounding=positive, floor=positive, lipschitz=positive)
@settings(max_examples=200, deadline=None)
def test_b2_is_rounded_up_and_no_further(
    gradient: float, rounding: float, floor: float, lipschitz: float
) -> None:
    result = kantorovich_distance(gradient_norm=gradient, rounding=rounding, floor=floor, lipschitz=lipschitz)
    with mpmath.workdps(60):
        total = mpmath.mpf(gradient) + mpmath.mpf(rounding)
        h = mpmath.mpf(lipschitz) * total / mpmath.mpf(floor) ** 2
        if h >= 0.5:
            assert result == math.inf
        elif h < 0.4999:
            exact = 2 * total / (floor * (1 + mpmath.sqrt(1 - 2 * h)))
            assert exact <= result <= exact * (1 + mpmath.mpf(10) ** -11)
            assert distance_b2(gradient, rounding, floor, lipschitz) * (1 - 1e-12) <= result


@given(gradient=positive, lipschitz=positive, target=positive)
@settings(max_examples=100, deadline=None)
def test_the_floor_asked_for_is_the_one_that_certifies(
    gradient: float, lipschitz: float, target: float
) -> None:
    needed = needed_floor(gradient=gradient, lipschitz=lipschitz, target=target)
    for share, enough in ((1 + 1e-6, True), (1 - 1e-6, False)):
        distance = kantorovich_distance(
            gradient_norm=gradient, rounding=0.0, floor=share * needed, lipschitz=lipschitz
        )
        assert (distance <= target * (1 + 1e-9)) is enough


def certified(
    spec: Spec, seed: int, lam: float, offset: float, target: float = 1e-3
) -> tuple[NetworkObjective, torch.Tensor, torch.Tensor, KantorovichResult]:
    objective = network_problem(spec, seed=seed, lam=lam)
    exact = minimiser(objective, objective.anchor)
    step = torch.randn(len(exact), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    w = exact + offset * step / step.norm()
    result = certify(objective, spec, w, target=target, failure_probability=1e-9, gaussian=seeded(seed))
    return objective, exact, w, result


@pytest.mark.parametrize(
    ("spec", "lam", "seed"),
    [
        (DENSE[0], 0.3, 0),
        (DENSE[1], 2.0, 1),
        (DENSE[2], 0.5, 2),
        (DENSE[3], 0.3, 3),
        (CONVOLUTIONAL[0], 0.5, 4),
    ],
)
def test_the_true_distance_is_within_the_certified_one(spec: Spec, lam: float, seed: int) -> None:
    offset = 10.0 ** -(5 + seed)
    objective, exact, w, result = certified(spec, seed, lam, offset)
    assert result.verdict is Verdict.CERTIFIED, result.explanation
    assert float((w - exact).norm()) <= result.distance <= result.target
    assert result.floor <= float(torch.linalg.eigvalsh(dense_hessian(objective, w))[0])
    assert result.h < 0.5
    assert result.radius >= 2 * (result.gradient_norm + result.rounding) / result.floor
    assert result.curvature is not None
    assert result.passes >= result.curvature.passes


def test_the_split_is_taken_where_it_is_cheaper_and_bounds_the_same_hessian() -> None:
    objective, _, w, result = certified(DENSE[0], 3, 3.0, 1e-6)
    assert result.curvature is not None
    assert result.curvature.route == "split"
    assert 0 < result.floor <= float(torch.linalg.eigvalsh(dense_hessian(objective, w))[0])


def test_a_verifier_comes_to_the_same_distance() -> None:
    objective, _, _, result = certified(DENSE[1], 5, 1.0, 1e-6)
    record = curvature_evidence(result)
    floors = [
        (recomputed_floor(run, objective.dimension) or -1) + (objective.lam if run.route == "split" else 0)
        for run in record.runs
    ]
    assert record.floor <= max(floors) * (1 + 1e-12)
    assert math.fsum(run.failure_probability for run in record.runs) <= 1e-9
    theirs = distance_b2(result.gradient_norm, result.rounding, record.floor, record.hessian_lipschitz)
    assert Fraction(result.distance) >= Fraction(theirs) * (1 - Fraction(1, 10**12))


def test_refusals_name_the_condition_that_failed() -> None:
    saddle = network_problem(DENSE[0], lam=1e-6)
    flat = certify(
        saddle,
        DENSE[0],
        torch.zeros(saddle.dimension, dtype=torch.float64),
        target=1.0,
        failure_probability=1e-6,
    )
    assert flat.verdict is Verdict.NO_CURVATURE
    assert flat.floor <= 0
    assert flat.distance == math.inf
    assert flat.curvature is not None
    assert flat.curvature.runs
    _, _, _, steep = certified(DENSE[0], 0, 1.0, 0.3, target=10.0)
    assert steep.verdict is Verdict.TOO_STEEP
    assert steep.h >= 0.5
    assert steep.spare <= 0
    _, _, _, far = certified(DENSE[0], 0, 1.0, 1e-6, target=1e-9)
    assert far.verdict is Verdict.TOO_FAR
    assert far.distance > far.target
    assert f"{far.floor:.3g}" in far.explanation
    _, _, _, cramped = certified(DENSE[0], 0, 1.0, 0.0, target=1e-18)
    assert cramped.verdict is Verdict.ROUNDING


def test_without_an_analytic_bound_there_is_an_estimate_at_most() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3)).double()
    like = network_problem(DENSE[0], lam=1.0)
    objective = NetworkObjective(like.rows, module, 1.0)
    exact = minimiser(objective, objective.anchor)
    refused = certify(objective, module, exact, target=1e-3, failure_probability=1e-6)
    assert refused.verdict is Verdict.NO_ANALYTIC_BOUND
    assert refused.curvature is None
    estimate = certify(objective, module, exact, target=1e-3, failure_probability=1e-6, heuristic=True)
    assert estimate.verdict is Verdict.ESTIMATED
    assert estimate.source == "sampled"


def test_cancelling_certifies_nothing() -> None:
    objective = network_problem(DENSE[0], lam=1.0)
    w = minimiser(objective, objective.anchor)
    result = certify(objective, DENSE[0], w, target=1e-3, failure_probability=1e-6, cancelled=lambda: True)
    assert result.verdict is Verdict.CANCELLED
    assert result.distance == math.inf


def test_advice_finds_where_certification_begins() -> None:
    """The advised λ certifies. Half of the next smaller, refused λ does not within the same budget."""
    spec = Mlp((4, 3, 3), "gelu")

    def at(lam: float) -> NetworkObjective:
        return network_problem(spec, lam=lam, rows=40)

    start = at(1.0).anchor
    advice = smallest_certifiable_lambda(
        at,
        spec,
        start,
        target=1e-4,
        failure_probability=1e-9,
        budget_products=60,
        ratio=3.0,
        gaussian=seeded(0),
    )
    assert advice.best is not None
    assert advice.best.solve_products > 0
    objective = at(advice.best.lam)
    w = minimiser(objective, start)
    result = certify(
        objective, spec, w, target=1e-4, failure_probability=1e-9, budget_products=60, gaussian=seeded(1)
    )
    assert result.verdict is Verdict.CERTIFIED, result.explanation
    worse = [estimate for estimate in advice.estimates if estimate.lam < advice.best.lam]
    assert worse
    assert not any(look.within(60) for look in worse)

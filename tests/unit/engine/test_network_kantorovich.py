"""B2 against dense Hessians and minimisers found to the last digit; refusals that say what is missing."""

import math
from fractions import Fraction

import mpmath
import pytest
import torch
from certified_networks import CONVOLUTIONAL, DENSE, dense_hessian, minimiser, network_problem, seeded
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from certificate.evidence_check import curvature_floor as recomputed_floor
from certificate.evidence_check import distance_b2
from worker.engine.bounds import kantorovich_distance, needed_floor
from worker.engine.networks.advice import smallest_certifiable_lambda
from worker.engine.networks.architectures import Mlp, Spec
from worker.engine.networks.kantorovich import Kantorovich, Verdict, certify
from worker.engine.networks.objective import NetworkObjective
from worker.pipeline.curvature import recorded

positive = st.floats(-12, 6).map(lambda power: 10**power)


@given(gradient=positive, rounding=positive, floor=positive, lipschitz=positive)
@settings(max_examples=200, deadline=None)
def test_b2_is_rounded_up_and_no_further(
    gradient: float, rounding: float, floor: float, lipschitz: float
) -> None:
    found = kantorovich_distance(gradient_norm=gradient, rounding=rounding, floor=floor, lipschitz=lipschitz)
    with mpmath.workdps(60):
        total = mpmath.mpf(gradient) + mpmath.mpf(rounding)
        h = mpmath.mpf(lipschitz) * total / mpmath.mpf(floor) ** 2
        if h >= 0.5:
            assert found == math.inf
        elif h < 0.4999:
            exact = 2 * total / (floor * (1 + mpmath.sqrt(1 - 2 * h)))
            assert exact <= found <= exact * (1 + mpmath.mpf(10) ** -11)
            assert distance_b2(gradient, rounding, floor, lipschitz) * (1 - 1e-12) <= found


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
) -> tuple[NetworkObjective, torch.Tensor, torch.Tensor, Kantorovich]:
    objective = network_problem(spec, seed=seed, lam=lam)
    exact = minimiser(objective, objective.anchor)
    step = torch.randn(len(exact), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    w = exact + offset * step / step.norm()
    found = certify(objective, spec, w, target=target, failure_probability=1e-9, gaussian=seeded(seed))
    return objective, exact, w, found


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
    objective, exact, w, found = certified(spec, seed, lam, offset)
    assert found.verdict is Verdict.CERTIFIED, found.explanation
    assert float((w - exact).norm()) <= found.distance <= found.target
    assert found.floor <= float(torch.linalg.eigvalsh(dense_hessian(objective, w))[0])
    assert found.h < 0.5
    assert found.radius >= 2 * (found.gradient_norm + found.rounding) / found.floor
    assert found.curvature is not None
    assert found.passes >= found.curvature.passes


def test_the_split_is_taken_where_it_is_cheaper_and_bounds_the_same_hessian() -> None:
    objective, _, w, found = certified(DENSE[0], 3, 3.0, 1e-6)
    assert found.curvature is not None
    assert found.curvature.route == "split"
    assert 0 < found.floor <= float(torch.linalg.eigvalsh(dense_hessian(objective, w))[0])


def test_a_verifier_comes_to_the_same_distance() -> None:
    objective, _, _, found = certified(DENSE[1], 5, 1.0, 1e-6)
    record = recorded(found)
    floors = [
        (recomputed_floor(run, objective.dimension) or -1) + (objective.lam if run.route == "split" else 0)
        for run in record.runs
    ]
    assert record.floor <= max(floors) * (1 + 1e-12)
    assert math.fsum(run.failure_probability for run in record.runs) <= 1e-9
    theirs = distance_b2(found.gradient_norm, found.rounding, record.floor, record.hessian_lipschitz)
    assert Fraction(found.distance) >= Fraction(theirs) * (1 - Fraction(1, 10**12))


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
    found = certify(objective, DENSE[0], w, target=1e-3, failure_probability=1e-6, cancelled=lambda: True)
    assert found.verdict is Verdict.CANCELLED
    assert found.distance == math.inf


def test_advice_finds_where_certification_begins() -> None:
    """The λ advised certifies; half of what was refused next to it does not within the same budget."""
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
    found = certify(
        objective, spec, w, target=1e-4, failure_probability=1e-9, budget_products=60, gaussian=seeded(1)
    )
    assert found.verdict is Verdict.CERTIFIED, found.explanation
    worse = [look for look in advice.seen if look.lam < advice.best.lam]
    assert worse
    assert not any(look.within(60) for look in worse)

"""What may be claimed for a point: every rule, both sides of every threshold, and every refusal."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from app.db.manifest import Manifest
from app.db.states import HeldReason
from lethe.certificate.predicate import Assurance, Rule
from lethe.certificate.privacy import NOISE_RESIDUAL, grid_step
from lethe.policy import Method
from worker.batch.certify import Claim, certify, terms_of
from worker.batch.solve import Candidate
from worker.context import Caveats, Refusal
from worker.engine import noise
from worker.engine.networks.kantorovich import Verdict
from worker.engine.networks.lanczos import LanczosRun
from worker.fitting import noise_problem

ORIGINS = {"features": "made up", "constants": "made up", "anchor": "a public draw"}
NETWORK = {"hidden": [5], "activation": "tanh"}
TARGET = 1e-3
NONE = Caveats()
CHANGED = Caveats(changed_after_refusal=True)
STANDARDISED = Caveats(warnings=("features-look-standardised",))


def manifest(family: str = "softmax", *, method: Method = "tr", **policy: Any) -> Manifest:
    """A manifest of this family; networks other than an MLP are plug-ins, whose curvature is sampled."""
    return Manifest.model_validate(
        {
            "family": family,
            "width": 6,
            "classes": 3,
            "lambda": 0.05,
            "origins": ORIGINS,
            "network": NETWORK if family == "mlp" else None,
            "policy": {"target_distance": TARGET, "method": method, **policy},
        }
    )


def candidate(mechanism: Method = "tr", **figures: Any) -> Candidate:
    """A point within the target; `figures` replace its own."""
    defaults: dict[str, Any] = {
        "w": torch.ones(4, dtype=torch.float64),
        "gradient_norm": 1e-6,
        "rounding": 1e-12,
        "distance": TARGET / 2,
        "converged": True,
        "outcome": "certified distance within target",
        "passes": 3.0,
        "seconds": 0.1,
    }
    objective: Any = SimpleNamespace()
    return Candidate(mechanism=mechanism, objective=objective, **(defaults | figures))


def measured(verdict: Verdict, **figures: Any) -> Any:
    """What measuring the curvature found at the candidate's point."""
    run = LanczosRun("direct", 7, 1e-10, 0.2, 3.0, (0.2, 3.0), 1e-9)
    defaults: dict[str, Any] = {
        "target": TARGET,
        "distance": TARGET / 3,
        "floor": 0.2,
        "needed": 0.1,
        "lipschitz": 5.0,
        "source": "analytic",
        "derivation": "product of norms",
        "radius": 0.01,
        "h": 0.05,
        "curvature": SimpleNamespace(runs=(run,)),
    }
    return SimpleNamespace(verdict=verdict, **(defaults | figures))


def claimed(outcome: Claim | Refusal) -> Claim:
    assert isinstance(outcome, Claim), outcome
    return outcome


def refused(outcome: Claim | Refusal) -> str:
    assert isinstance(outcome, Refusal), outcome
    assert outcome.reason is HeldReason.NOT_CERTIFIABLE
    return outcome.detail


# -- terms --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("described", "mechanism", "caveats", "rule", "assurance"),
    [
        (manifest(), "tr", NONE, "B1", "proved"),
        (manifest(), "tr", CHANGED, "B1", "conditional"),
        (manifest(), "tr", STANDARDISED, "B1", "conditional"),
        (manifest(), "retrain", NONE, "retrain", "proved"),
        (manifest(), "retrain", CHANGED, "retrain", "conditional"),
        (manifest("mlp"), "tr", NONE, "B2", "conditional"),
        (manifest("mlp"), "tr", CHANGED, "B2", "conditional"),
        (manifest("mlp"), "retrain", NONE, "retrain", "proved"),
        (manifest("plugged", heuristic=True), "tr", NONE, "B2", "heuristic"),
        (manifest("plugged", heuristic=True), "tr", STANDARDISED, "B2", "heuristic"),
        (manifest(method="guo2020"), "guo2020", NONE, "guo2020", "as-published"),
        (manifest(method="tr-paper"), "tr-paper", CHANGED, "tr-paper", "as-published"),
        (manifest(method="zhang2024"), "zhang2024", NONE, "zhang2024", "as-published"),
    ],
)
def test_rule_and_assurance_follow_from_family_method_and_caveats(
    described: Manifest, mechanism: Method, caveats: Caveats, rule: Rule, assurance: Assurance
) -> None:
    terms = terms_of(described, mechanism, caveats)
    assert (terms.rule, terms.assurance) == (rule, assurance)
    if rule == "retrain":
        assert (terms.shift, terms.failure_probability, terms.residual) == (0.0, 0.0, 0.0)
    else:
        assert terms.shift == described.release_shift
        assert terms.residual == NOISE_RESIDUAL
        assert (terms.failure_probability > 0) is (rule == "B2")


# -- claims -------------------------------------------------------------------------------------------------


def test_a_convex_model_claims_its_target_and_keeps_the_computed_distance_as_evidence() -> None:
    described = manifest()
    claim = claimed(certify(described, NONE, candidate(distance=TARGET / 7)))
    assert (claim.stated, claim.sigma, claim.distance) == (TARGET, described.sigma, TARGET / 7)
    assert (claim.posterior, claim.curvature, claim.method) == (None, None, {})


@pytest.mark.parametrize(("distance", "posterior"), [(1e-5, 1e-5), (math.inf, None)])
def test_a_retrained_model_is_its_own_reference(distance: float, posterior: float | None) -> None:
    described = manifest()
    claim = claimed(certify(described, NONE, candidate("retrain", distance=distance)))
    assert (claim.stated, claim.distance, claim.posterior) == (0.0, 0.0, posterior)
    assert claim.sigma == described.sigma


def test_a_network_claims_its_target_with_the_measured_curvature() -> None:
    described = manifest("mlp")
    found = measured(Verdict.CERTIFIED, distance=TARGET / 5)
    claim = claimed(certify(described, NONE, candidate(distance=math.inf, curvature=found)))
    assert (claim.stated, claim.sigma, claim.distance) == (TARGET, described.sigma, TARGET / 5)
    assert claim.curvature is not None
    assert (claim.curvature.floor, claim.curvature.kantorovich) == (found.floor, found.h)
    assert [run.steps for run in claim.curvature.runs] == [7]


def test_a_sampled_constant_gives_an_estimate_of_the_lowest_tier() -> None:
    described = manifest("plugged", heuristic=True)
    found = measured(Verdict.ESTIMATED, source="sampled")
    claim = claimed(certify(described, NONE, candidate(curvature=found)))
    assert claim.terms.assurance == "heuristic"
    assert claim.curvature is not None
    assert claim.curvature.hessian_lipschitz_source == "sampled"


def test_certifying_does_not_move_the_point() -> None:
    point = candidate(w=torch.linspace(-1, 1, 5, dtype=torch.float64))
    before: Tensor = point.w.clone()
    claimed(certify(manifest(), NONE, point))
    assert torch.equal(point.w, before)


@given(st.floats(1e-8, 1e3))
def test_a_baseline_claims_what_it_achieved_rounded_up_to_two_digits(distance: float) -> None:
    described = manifest(method="guo2020")
    result: Any = SimpleNamespace(distance=distance, posterior=0.5, constants={"row_bound": 1.0})
    claim = claimed(certify(described, NONE, candidate("guo2020", distance=distance, baseline=result)))
    assert distance <= claim.stated <= 1.11 * distance
    assert claim.stated == float(f"{claim.stated:.1e}")
    assert claim.sigma == described.sigma_for(claim.stated)
    assert (claim.distance, claim.posterior) == (distance, 0.5)
    assert claim.method == {"row_bound": 1.0}


# -- refusals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("distance", "reached"),
    [
        (TARGET * 1.0001, "within a factor of 1e1"),
        (TARGET * 10, "within a factor of 1e1"),
        (TARGET * 11, "within a factor of 1e2"),
        (TARGET, "not"),
        (TARGET / 2, "not"),  # the solver stopped for another reason
        (math.inf, "not"),
        (math.nan, "not"),
    ],
)
def test_a_solve_that_did_not_converge_is_refused_by_a_power_of_ten(distance: float, reached: str) -> None:
    point = candidate(converged=False, outcome="out of time", distance=distance)
    detail = refused(certify(manifest(), NONE, point))
    assert detail == f"out of time: the target distance was {reached} reached"


def test_a_baseline_whose_conditions_do_not_hold_is_refused_with_its_reason() -> None:
    result: Any = SimpleNamespace(distance=math.inf, posterior=None, constants={})
    point = candidate(
        "guo2020", converged=False, outcome="rows are too long", distance=math.inf, baseline=result
    )
    assert refused(certify(manifest(method="guo2020"), NONE, point)).startswith("rows are too long")


@pytest.mark.parametrize(
    "verdict", [verdict for verdict in Verdict if verdict not in (Verdict.CERTIFIED, Verdict.ESTIMATED)]
)
def test_every_other_verdict_on_the_curvature_is_refused_by_its_name(verdict: Verdict) -> None:
    point = candidate(curvature=measured(verdict))
    assert refused(certify(manifest("mlp"), NONE, point)).startswith(str(verdict))


def test_missing_curvature_is_told_by_powers_of_ten_and_never_by_its_figures() -> None:
    found = measured(Verdict.NO_CURVATURE, floor=0.0123, needed=0.456, h=math.inf, distance=math.inf)
    detail = refused(certify(manifest("mlp"), NONE, candidate(curvature=found)))
    assert detail == f"{Verdict.NO_CURVATURE}; the curvature floor is about 1e-2 of what it must be"
    steep = measured(Verdict.TOO_STEEP, floor=-1.0, h=20.0, distance=math.inf)
    detail = refused(certify(manifest("mlp"), NONE, candidate(curvature=steep)))
    assert detail == f"{Verdict.TOO_STEEP}; h is about 1e1 of what it must be"


def test_weights_that_the_grid_cannot_hold_are_refused() -> None:
    described = manifest()
    limit = noise.LARGEST_STEPS * grid_step(described.sigma)
    inside = torch.tensor([0.0, -math.nextafter(limit, 0.0)], dtype=torch.float64)
    claimed(certify(described, NONE, candidate(w=inside)))
    outside = torch.tensor([0.0, -limit], dtype=torch.float64)
    assert "grid" in refused(certify(described, NONE, candidate(w=outside)))


def test_more_weights_than_the_residual_covers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.fitting.LARGEST_DIMENSION", 4)
    assert noise_problem(torch.ones(4), 1.0) is None
    assert noise_problem(torch.ones(5), 1.0) == "the model has more than 4 weights"
    assert noise_problem(torch.ones(0), 1.0) is None

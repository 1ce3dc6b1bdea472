"""Evidence that does not open the commitment or does not support the bound is refused by name."""

from __future__ import annotations

import math
from typing import Any

import pytest

from lethe.certificate.evidence_check import curvature_floor, distance_b1, distance_b2
from lethe.certificate.verify import VerificationReport
from tests.unit.certificate.certificate_cases import Issuer
from tests.unit.certificate.certificate_evidence_cases import (
    LAMBDA,
    TARGET,
    evidence_for,
    lanczos,
    spread,
    uuid7,
)
from tests.unit.certificate.certificate_reports import KEY, failed_lines, refused, report_on, resigned


def with_evidence(kind: str, **changes: Any) -> VerificationReport:
    return report_on(resigned(kind, evidence_edit=changes))


def test_evidence_of_another_run_does_not_open_the_commitment():
    issuer = Issuer(KEY)
    issued = issuer.issue()
    other = issued.evidence.model_copy(update={"salt": "00" * 16})
    refused(report_on(issuer, evidence=other), 8, "commits to")


def test_a_target_below_the_evidence_is_refused():
    refused(with_evidence("tr-proved", distance=TARGET * 1.01), 8, "its own numbers give")
    refused(with_evidence("tr-proved", gradient_norm=2e-6, trace=()), 8, "its own numbers give")
    far = {"gradient_norm": 2e-6, "distance": distance_b1(2e-6, 1e-12, LAMBDA), "trace": ()}
    refused(with_evidence("tr-proved", **far), 8, "above Δ*")
    far = {"distance": TARGET * 1.01, "paper_distance": TARGET * 1.01}
    refused(with_evidence("guo2020-as-published", **far), 8, "above Δ*")
    refused(with_evidence("tr-proved", rounding_error=1.1e-6), 8, "rounding error alone")
    refused(with_evidence("tr-proved", distance=0.0), 8, "its own numbers give")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"floor": 0.2}, "Ritz values give"),
        ({"floor": -0.1}, "not above 0"),
        ({"hessian_lipschitz": 1e9}, "not below 1/2"),
        ({"kantorovich": 1e-9}, "the evidence states h"),
        ({"ball_radius": 1e-9}, "ball smaller"),
        ({"runs": ()}, "no Lanczos run"),
        ({"hessian_lipschitz_source": "sampled"}, "sampled"),
    ],
)
def test_curvature_that_does_not_support_b2_is_refused(change, words):
    refused(with_evidence("tr-conditional", curvature=lanczos().model_copy(update=change)), 8, words)


def test_failure_probabilities_and_ritz_values_are_added_up():
    curvature = lanczos()
    spent = curvature.runs + (curvature.runs[0],) * 2
    refused(
        with_evidence("tr-conditional", curvature=curvature.model_copy(update={"runs": spent})),
        8,
        "p_j sum to",
    )
    run = curvature.runs[0].model_copy(update={"ritz_min": 0.06})
    refused(
        with_evidence("tr-conditional", curvature=curvature.model_copy(update={"runs": (run,)})),
        8,
        "extremes",
    )
    refused(with_evidence("tr-conditional", curvature=None), 8, "curvature")


def test_a_ritz_value_is_not_a_floor():
    """Kuczyński–Woźniakowski by hand: k = 400, d = 1000, p_j = 5e-10 give √ε_k = ln(3.296·√1000/p_j)/799."""
    run = lanczos().runs[0]
    spread = (math.log(3.296 * math.sqrt(1000) / 5e-10) / 799) ** 2
    by_hand = 0.05 - spread * 0.95 / (1 - 2 * spread) - 1e-12
    assert curvature_floor(run, 1000) == pytest.approx(by_hand, rel=1e-14)
    assert curvature_floor(run.model_copy(update={"steps": 10}), 1000) is None
    curvature = lanczos().model_copy(update={"floor": run.ritz_min})
    refused(with_evidence("tr-conditional", curvature=curvature), 8, "Ritz values give")


@pytest.mark.parametrize(
    "change",
    [
        {"ritz_max": -1e3},  # a negative range would lift the floor above θ_min
        {"rounding_slack": 0.0},
    ],
)
def test_ritz_values_that_no_run_has_are_refused(change):
    curvature = lanczos()
    runs = (curvature.runs[0].model_copy(update=change), *curvature.runs[1:])
    evidence = with_evidence("tr-conditional", curvature=curvature.model_copy(update={"runs": runs}))
    assert failed_lines(evidence) == [8]


@pytest.mark.parametrize("listed", [0, 3, 399, 401])
def test_a_run_lists_as_many_ritz_values_as_it_made_steps(listed):
    curvature = lanczos()
    values = spread(0.05, 1.0, listed) if listed else ()
    run = curvature.runs[0].model_copy(update={"ritz_values": values})
    report = with_evidence("tr-conditional", curvature=curvature.model_copy(update={"runs": (run,)}))
    refused(report, 8, f"lists {listed} Ritz values")


def test_the_split_route_adds_lambda():
    run = (
        lanczos()
        .runs[0]
        .model_copy(
            update={
                "route": "split",
                "ritz_min": -0.001,
                "ritz_max": 0.001,
                "ritz_values": spread(-0.001, 0.001, 400),
            }
        )
    )
    curvature = lanczos().model_copy(update={"runs": (run,), "floor": 0.0089, "hessian_lipschitz": 1.0})
    gradient, rounding = 1e-8, 1e-12
    h = (gradient + rounding) / 0.0089**2
    update = {
        "gradient_norm": gradient,
        "distance": distance_b2(gradient, rounding, 0.0089, 1.0),
        "curvature": curvature.model_copy(update={"kantorovich": h, "ball_radius": 1e-5}),
        "trace": (),
    }
    assert with_evidence("tr-conditional", **update).verified


def test_evidence_of_another_certificate_is_refused():
    refused(report_on(resigned(certificate_id=uuid7(77))), 8, "another certificate")


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        ("tr-proved", {"rounding_error": 0.0}, "smaller than double precision"),
        ("tr-proved", {"rounding_error": 1e-300}, "smaller than double precision"),
        ("tr-conditional", {"rounding_error": 0.0}, "smaller than double precision"),
        ("retrain-proved", {"distance": 1e-9}, "its own numbers give"),
        ("tr-proved", {"paper_distance": 1.0}, "baseline"),
        ("tr-proved", {"posterior_distance": 1e-5}, "states a second one"),
        ("guo2020-as-published", {"paper_distance": None}, "baseline"),
        ("guo2020-as-published", {"paper_distance": 1.0}, "two values"),
        ("guo2020-as-published", {"posterior_distance": 1e-9}, "B1 gives"),
        ("tr-proved", {"seconds_total": 0.1}, "longer than the whole run"),
        ("tr-proved", {"solver": {"passes": 1.0}}, "more passes"),
        ("tr-proved", {"curvature": lanczos()}, "measures no curvature"),
    ],
)
def test_evidence_that_contradicts_itself_is_refused(kind, change, words):
    refused(with_evidence(kind, **change), 8, words)


def test_a_hessian_that_does_not_change_is_refused():
    curvature = lanczos().model_copy(update={"hessian_lipschitz": 0.0, "kantorovich": 0.0})
    refused(with_evidence("tr-conditional", curvature=curvature), 8, "M = 0")


def test_the_trace_ends_where_the_release_begins_and_never_runs_backwards():
    steps = evidence_for("tr-proved", uuid7(1)).trace
    other = steps[1].model_copy(update={"gradient_norm": 4e-7})
    refused(with_evidence("tr-proved", trace=(steps[0], other)), 8, "the last step ended")
    back = steps[0].model_copy(update={"passes": 10.0})
    refused(with_evidence("tr-proved", trace=(back, steps[1])), 8, "run backwards")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"erased": {"0": 19, "1": 5}}, "do not add up"),
        ({"retained": {"0": 40, "1": 36}}, "do not add up"),
        ({"erased": {"0": 19, "1": 5}, "retained": {"0": 41, "1": 35}}, "the certificate states 25"),
        ({"kl_retained_original": 0.5}, "divergences"),
        ({"kl_original_retained": None}, "divergences"),
    ],
)
def test_counts_that_do_not_add_up_are_refused(change, words):
    shift = evidence_for("tr-proved", uuid7(1)).shift
    assert shift is not None
    refused(with_evidence("tr-proved", shift=shift.model_copy(update=change)), 8, words)

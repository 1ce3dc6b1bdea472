"""Evidence that does not open the commitment or does not support the bound is refused by name."""

from __future__ import annotations

import math
from typing import Any

import pytest
from certificate_cases import Issuer
from certificate_evidence_cases import TARGET, lanczos, uuid7
from certificate_reports import KEY, refused, report_on, resigned

from certificate.evidence_check import curvature_floor
from certificate.verify import Report


def with_evidence(kind: str, **changes: Any) -> Report:
    return report_on(resigned(kind, evidence_edit=changes))


def test_evidence_of_another_run_does_not_open_the_commitment():
    issuer = Issuer(KEY)
    issued = issuer.issue()
    other = issued.evidence.model_copy(update={"salt": "00" * 16})
    refused(report_on(issuer, evidence=other), 8, "commits to")


def test_a_target_below_the_evidence_is_refused():
    refused(with_evidence("tr-proved", distance=TARGET * 1.01), 8, "above Δ*")
    refused(with_evidence("tr-proved", gradient_norm=2e-6), 8, "its own numbers give")
    refused(with_evidence("tr-proved", gradient_norm=2e-6, distance=2.1e-4), 8, "above Δ*")
    refused(with_evidence("guo2020-as-published", distance=TARGET * 1.01), 8, "above Δ*")
    refused(with_evidence("tr-proved", rounding_error=1.1e-6), 8, "rounding error alone")
    refused(with_evidence("tr-proved", distance=0.0), 8, "its own numbers give")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"floor": 0.2}, "Ritz values give"),
        ({"floor": -0.1}, "not above 0"),
        ({"hessian_lipschitz": 1e9}, "not below 1/2"),
        ({"kantorovich": 1e-9}, "the evidence says h"),
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
        {"ritz_max": -1e3, "ritz_values": ()},  # a negative range would lift the floor above θ_min
        {"rounding_slack": 0.0},
    ],
)
def test_ritz_values_that_no_run_has_are_refused(change):
    curvature = lanczos()
    runs = (curvature.runs[0].model_copy(update=change), *curvature.runs[1:])
    evidence = with_evidence("tr-conditional", curvature=curvature.model_copy(update={"runs": runs}))
    refused(evidence, 8, "no Lanczos run has")


def test_steps_without_their_ritz_values_are_the_issuers_word_and_it_says_so():
    curvature = lanczos()
    whole = curvature.runs[0].model_copy(update={"ritz_values": (*([0.05] * 399), 1.0)})
    told = with_evidence("tr-conditional", curvature=curvature.model_copy(update={"runs": (whole,)}))
    assert "issuer's word" not in line(told, 8)
    assert "issuer's word" in line(with_evidence("tr-conditional", curvature=curvature), 8)


def line(report, number):
    return next(each.detail for each in report.lines if each.number == number)


def test_the_split_route_adds_lambda():
    run = (
        lanczos()
        .runs[0]
        .model_copy(update={"route": "split", "ritz_min": -0.001, "ritz_max": 0.001, "ritz_values": ()})
    )
    curvature = lanczos().model_copy(update={"runs": (run,), "floor": 0.0089, "hessian_lipschitz": 1.0})
    gradient = 1e-8
    update = {
        "gradient_norm": gradient,
        "distance": 2.0e-6,
        "curvature": curvature.model_copy(update={"kantorovich": 1e-3, "ball_radius": 1e-5}),
    }
    assert with_evidence("tr-conditional", **update).verified


def test_evidence_of_another_certificate_is_refused():
    refused(report_on(resigned(certificate_id=uuid7(77))), 8, "another certificate")

"""Too little noise and an unsupported assurance are refused by name, even if the issuer signs them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lethe.certificate.chain import extend_lifetime
from lethe.certificate.privacy import NOISE_RESIDUAL, epsilon_for, grid_step
from lethe.certificate.verify import VerificationReport, verify
from tests.unit.certificate.certificate_cases import Issuer, needed_sigma
from tests.unit.certificate.certificate_evidence_cases import DELTA, EPSILON, FAILURE, KINDS, TARGET
from tests.unit.certificate.certificate_reports import KEY, failed_lines, refused, report_on, resigned


def sigma(calibration: str = "analytic", **kwargs: float) -> float:
    return needed_sigma(calibration, **kwargs)


def noise_failure(kind: str, **edit: Any) -> VerificationReport:
    """Return the report on edited noise with an honest lifetime, so that only line 4 can fail."""
    issuer = Issuer(KEY)
    issued = issuer.issue(kind)
    predicate = issued.statement.predicate
    noise, bound = edit.get("noise", {}), edit.get("bound", {})
    delta = edit.get("guarantee", {}).get("delta", DELTA)
    shift = bound.get("distance_target", TARGET) / noise.get("sigma", predicate.noise.sigma)
    lifetime = extend_lifetime(
        None,
        None,
        mechanism=predicate.mechanism,
        shift=shift,
        failure_probability=bound.get("failure_probability", predicate.bound.failure_probability),
        residual=NOISE_RESIDUAL,
        assurance=predicate.guarantee.assurance,
        delta=delta if 1e-16 < delta < 1 else DELTA,
        cap=None,
    )
    if "sigma" in noise:
        edit = edit | {"noise": {"grid_step": grid_step(noise["sigma"])} | noise}
    issuer = Issuer(KEY)
    issued = issuer.issue(kind, edit=edit | {"lifetime": lifetime.model_dump()})
    return verify(issuer.pack(), weights=issued.weights)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(
        ["tr-proved", "tr-proved-classical", "tr-conditional", "tr-heuristic", "guo2020-as-published"]
    ),
    st.floats(0.1, 1 - 1e-11),
)
def test_sigma_too_small_by_any_factor_is_refused(kind, factor):
    calibration = KINDS[kind][4]
    failure = FAILURE if KINDS[kind][1] == "B2" else 0.0
    small = sigma(calibration, failure=failure) * factor
    refused(noise_failure(kind, noise={"sigma": small}), 4, "need")


def test_more_noise_than_needed_is_fine():
    assert noise_failure("tr-proved", noise={"sigma": sigma() * 1.5}).verified


def test_sigma_for_delta_instead_of_delta_less_p_is_refused():
    refused(noise_failure("tr-conditional", noise={"sigma": sigma(delta=DELTA)}), 4, "δ - p")


def test_a_failure_probability_that_uses_up_delta_is_refused():
    report = noise_failure("tr-conditional", bound={"failure_probability": DELTA * 0.999999})
    assert 4 in failed_lines(report)
    issuer = resigned("tr-conditional", bound={"failure_probability": DELTA})
    assert 4 in failed_lines(report_on(issuer))


@pytest.mark.parametrize("epsilon", [1.0, 1.5, 8.0])
def test_classical_noise_from_epsilon_one_on_is_refused(epsilon):
    report = noise_failure("tr-proved-classical", guarantee={"epsilon": epsilon})
    refused(report, 4, "ε < 1")


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, DELTA), (EPSILON, 0.0), (1e-308, 1e-308), (1e300, 0.5)])
def test_headlines_no_noise_can_give_are_refused_without_a_crash(epsilon, delta):
    report = noise_failure("tr-proved", guarantee={"epsilon": epsilon, "delta": delta})
    assert 4 in failed_lines(report)


@pytest.mark.parametrize(
    ("epsilon", "delta", "words"), [(EPSILON, 9e-16, "below 1e-15"), (20.5, DELTA, "above 20")]
)
def test_what_noise_with_a_cut_tail_cannot_show_is_refused(epsilon, delta, words):
    needed = sigma(epsilon=epsilon, delta=delta) * 1.01
    report = noise_failure(
        "tr-proved", noise={"sigma": needed}, guarantee={"epsilon": epsilon, "delta": delta}
    )
    assert 4 in failed_lines(report)
    assert words in report.lines[3].detail
    needed = sigma(epsilon=EPSILON, delta=1e-15)
    held = noise_failure("tr-proved", noise={"sigma": needed}, guarantee={"delta": 1e-15})
    assert held.verified


def test_a_lifetime_at_a_delta_the_noise_cannot_show_is_refused():
    honest = Issuer(KEY).issue("tr-proved").statement.predicate.lifetime
    total = epsilon_for(delta=9e-16, shift=honest.running_shift)
    issuer = Issuer(KEY)
    issuer.issue("tr-proved", edit={"lifetime": {"delta": 9e-16, "epsilon_total": total}})
    refused(report_on(issuer), 6, "the lifetime's δ is")
    issuer = Issuer(KEY)
    issuer.issue(
        "retrain-proved",
        edit={"lifetime": {"running_shift": honest.running_shift, "delta": 9e-16, "epsilon_total": total}},
    )
    refused(report_on(issuer), 6, "sum to")


@pytest.mark.parametrize("family", ["mlp", "allcnn", "resnet18", "my-plugin"])
def test_proved_on_a_network_is_refused(family):
    report = report_on(resigned(objective={"family": family}))
    assert failed_lines(report) == [5, 6]
    assert "convex" in report.lines[4].detail
    assert "changes the family" in report.lines[5].detail


def test_assurance_above_what_the_rule_gives_is_refused():
    for kind, claimed in [
        ("tr-conditional", "proved"),
        ("tr-paper-as-published", "conditional"),
        ("guo2020-as-published", "proved"),
    ]:
        issuer = resigned(kind, guarantee={"assurance": claimed})
        assert 5 in failed_lines(report_on(issuer))
        assert "does not give" in report_on(issuer).lines[4].detail


def test_assumptions_inequalities_and_data_independence_must_be_stated():
    refused(
        report_on(resigned("tr-conditional", guarantee={"assumptions": ()})),
        5,
        "retraining-reaches-reference",
    )
    refused(report_on(resigned("tr-conditional", bound={"inequalities": ("mu0 > 0",)})), 5, "h < 1/2")
    refused(report_on(resigned("tr-proved", noise={"data_independent": False})), 5, "choices-after-refusal")
    refused(
        report_on(resigned("guo2020-as-published", noise={"data_independent": True})),
        5,
        "depends on the data",
    )


def test_mechanism_and_rule_must_belong_together():
    refused(report_on(resigned("tr-proved", mechanism="guo2020")), 5, "cannot bound")
    assert 5 in failed_lines(report_on(resigned("tr-proved", bound={"failure_probability": 1e-9})))

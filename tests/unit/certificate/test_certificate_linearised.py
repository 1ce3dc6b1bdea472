"""Certificates of linearised networks state the linearisation, and the verifier knows what B1 needs."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from lethe.certificate.assurance import linearisation_of
from lethe.certificate.verify import verify
from tests.unit.certificate.certificate_cases import Issuer

FAMILIES = ["mlp", "allcnn", "resnet18", "vision-transformer"]


def verdict(issuer: Issuer) -> Any:
    return verify(issuer.pack().to_bytes(), keys=issuer.keys.to_bytes())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_linearised_network_is_proved_by_b1(family: str) -> None:
    issuer = Issuer(family=family, layers=())
    issued = issuer.issue("tr-proved")
    assert verdict(issuer).verified
    modelled = family not in ("mlp", "allcnn")
    assert ("modelled-rounding" in issued.predicate.guarantee.assumptions) == modelled
    plugged_in = family == "vision-transformer"
    assert ("module-treats-rows-alone" in issued.predicate.guarantee.assumptions) == plugged_in


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_network_without_linearisation_is_not(family: str) -> None:
    issuer = Issuer(family=family)
    issuer.issue("tr-proved")
    report = verdict(issuer)
    assert not report.verified
    assert any("it is not linearised" in str(line.detail) for line in report.lines if line.ok is False)


@pytest.mark.parametrize(
    ("family", "change", "reason"),
    [
        ("resnet18", {"rounding": "derived"}, "rounding is modelled"),
        ("mlp", {"rounding": "modelled"}, "rounding is derived"),
        ("vision-transformer", {"architecture": "built-in"}, "architecture plug-in"),
    ],
)
def test_a_linearisation_that_does_not_fit_the_family_is_refused(
    family: str, change: dict[str, Any], reason: str
) -> None:
    stated = linearisation_of(family, ()).model_copy(update=change)
    issuer = Issuer(family=family, layers=())
    issuer.issue("tr-proved", edit={"objective": {"linearisation": stated}})
    report = verdict(issuer)
    assert any(reason in str(line.detail) for line in report.lines if line.ok is False), report


def test_a_convex_family_and_rule_b2_cannot_be_linearised() -> None:
    for family, kind in (("softmax", "tr-proved"), ("mlp", "tr-conditional")):
        issuer = Issuer(family=family, layers=())
        issuer.issue(kind)
        assert any(
            "is not possible" in str(line.detail) for line in verdict(issuer).lines if line.ok is False
        )


def test_a_missing_assumption_is_noticed() -> None:
    issuer = Issuer(family="resnet18", layers=())
    issued = issuer.issue("tr-proved")
    kept = tuple(name for name in issued.predicate.guarantee.assumptions if name != "modelled-rounding")
    other = Issuer(family="resnet18", layers=())
    other.issue("tr-proved", edit={"guarantee": {"assumptions": kept}})
    assert any("modelled-rounding" in str(line.detail) for line in verdict(other).lines if line.ok is False)


def test_the_linearisation_cannot_change_without_a_retrain() -> None:
    issuer = Issuer(family="mlp", layers=())
    issuer.issue("tr-proved")
    issuer.layers = ("layers.1",)
    issuer.issue("tr-proved")
    assert any("linearisation" in str(line.detail) for line in verdict(issuer).lines if line.ok is False)


def test_an_anchor_must_be_named() -> None:
    issued = Issuer(family="mlp", layers=()).issue("tr-proved")
    document = issued.predicate.objective.model_dump() | {"anchor_sha256": None}
    with pytest.raises(ValidationError, match="linearised at an anchor"):
        type(issued.predicate.objective).model_validate(document)


def test_other_certificates_keep_their_bytes() -> None:
    issued = Issuer().issue("tr-proved")
    assert b"linearisation" not in issued.predicate.to_bytes()

"""Certificates of models with a representation name it, assume row independence, and exclude its training."""

from __future__ import annotations

import copy
import json

import pytest
from pydantic import ValidationError

from lethe.certificate.assurance import NOT_COVERED, assumptions_for, not_covered_for
from lethe.certificate.cli import render
from lethe.certificate.predicate import Objective
from lethe.certificate.representation import ROW_CHECKS, CertifiedRepresentation
from lethe.certificate.vocabulary import ASSUMPTIONS, LIMITS
from tests.unit.certificate.certificate_cases import Issuer, objective
from tests.unit.certificate.certificate_mutations import KEY as INSIDER_KEY
from tests.unit.certificate.certificate_mutations import Insider
from tests.unit.certificate.certificate_reports import KEY, failed_lines, refused, report_on
from tests.unit.certificate.representation_cases import IMAGE, TEXT, VECTOR, certified

ASSUMPTION, LIMIT = "rows-represented-independently", "representation-training-data"


@pytest.mark.parametrize("row", [IMAGE, TEXT, VECTOR], ids=lambda row: row.kind)
def test_a_certificate_with_a_representation_verifies_and_prints_it(row):
    representation = certified(row)
    issuer = Issuer(KEY, representation=representation)
    for kind in ("tr-proved", "discarded-proved", "retrain-proved", "tr-proved"):
        issuer.issue(kind)
    report = report_on(issuer)
    assert report.verified, report.failed
    out = "\n".join(render(report))
    for words in (
        "The features come from this representation:",
        representation.declaration.origin,
        representation.declaration.licence,
        representation.digest,
        representation.graph_sha256,
        f"{representation.graph_bytes} bytes",
        representation.tokenizer_sha256 or "",
        ROW_CHECKS[representation.row_check],
        ASSUMPTIONS["rows-represented-independently"],
        *LIMITS.values(),
    ):
        assert words in out
    assert report.to_dict()["representation"] == report.representation


def test_a_certificate_without_a_representation_has_no_word_of_one():
    issuer = Issuer(KEY)
    issued = issuer.issue("tr-proved")
    assert b"represent" not in issued.envelope.payload
    assert "represent" not in "\n".join(render(report_on(issuer)))
    assert "representation" not in json.loads(objective("softmax", 1).to_bytes())
    assert ASSUMPTION not in assumptions_for("B1", "proved")
    assert not_covered_for(represented=False) == NOT_COVERED
    assert not_covered_for(represented=True) == (*NOT_COVERED, LIMIT)


def test_an_objective_with_a_representation_is_read_back_unchanged():
    stated = objective("softmax", 1, certified(TEXT))
    assert Objective.read(stated.to_bytes(), "objective") == stated


@pytest.mark.parametrize("represented", [True, False])
def test_the_assumption_and_the_limit_belong_to_a_representation_and_to_nothing_else(represented):
    honest = certified() if represented else None
    assumed = assumptions_for("B1", "proved", represented=not represented)
    issuer = Issuer(KEY, representation=honest)
    issuer.issue("tr-proved", edit={"guarantee": {"assumptions": assumed}})
    refused(report_on(issuer), 5, ASSUMPTION)
    issuer = Issuer(KEY, representation=honest)
    issuer.issue(
        "tr-proved", edit={"guarantee": {"not_covered": not_covered_for(represented=not represented)}}
    )
    refused(report_on(issuer), 5, LIMIT)


def test_a_representation_cannot_be_left_out_or_added_alone():
    issuer = Issuer(KEY, representation=certified())
    issuer.issue("tr-proved", edit={"objective": {"representation": None}})
    refused(report_on(issuer), 5, LIMIT)
    issuer = Issuer(KEY)
    issuer.issue("tr-proved", edit={"objective": {"representation": certified()}})
    refused(report_on(issuer), 5, LIMIT)


@pytest.mark.parametrize(
    "change",
    [
        {"digest": "0" * 64},
        {"graph_sha256": "0" * 64},
        {"tokenizer_sha256": "0" * 64},
        {"tokenizer_sha256": None},
        {"row_check": "by eye"},
        {"graph_bytes": 0},
    ],
    ids=lambda change: "-".join(map(str, *change.items())),
)
def test_a_representation_whose_digest_is_not_its_own_cannot_be_read(change):
    issuer = Issuer(INSIDER_KEY, representation=certified(TEXT))
    issuer.issue("tr-proved")
    insider = Insider(issuer)
    statement = copy.deepcopy(insider.payloads[0])
    statement["predicate"]["objective"]["representation"] |= change
    report = insider.report(0, statement)
    assert report is not None
    assert failed_lines(report)[0] == 2
    with pytest.raises(ValidationError):
        CertifiedRepresentation.model_validate(certified(TEXT).model_dump() | change)


@pytest.mark.parametrize(
    "other",
    [
        certified(graph=b"another graph"),
        certified(normalisation="unit"),
        certified(outputs=("features", "logits")),
        certified(VECTOR),
        certified(origin="somewhere else"),
        certified().model_copy(update={"graph_bytes": 21}),
        None,
    ],
    ids=["graph", "normalisation", "outputs", "input", "origin", "size", "none"],
)
def test_only_a_retrain_changes_the_representation(other):
    for first, second in ((certified(), other), (other, certified())):
        issuer = Issuer(KEY, representation=first)
        issuer.issue("tr-proved")
        issuer.representation = second
        issuer.issue("tr-proved")
        refused(report_on(issuer), 6, "changes the representation without a retrain")
        issuer = Issuer(KEY, representation=first, family="softmax")
        issuer.issue("tr-proved")
        issuer.representation = second
        issuer.issue("retrain-proved")
        issuer.issue("tr-proved")
        assert report_on(issuer).verified


def test_the_row_check_may_change_between_releases():
    issuer = Issuer(KEY, representation=certified())
    issuer.issue("tr-proved")
    issuer.representation = certified().model_copy(update={"row_check": "rows-run-alone"})
    issuer.issue("tr-proved")
    report = report_on(issuer)
    assert report.verified
    assert any(ROW_CHECKS["rows-run-alone"] in sentence for sentence in report.representation)

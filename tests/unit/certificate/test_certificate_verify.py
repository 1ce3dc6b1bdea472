"""The checklist accepts honest certificates and refuses bad signatures, files and receipts."""

from __future__ import annotations

import pytest

from lethe.certificate.assurance import CONVEX_FAMILIES
from lethe.certificate.envelope import sign
from lethe.certificate.errors import UnusableInput
from lethe.certificate.evidence import commit
from lethe.certificate.keys import KeySet, PublicKey, SigningKey
from lethe.certificate.merkle import leaf_hash
from lethe.certificate.pack import Pack
from lethe.certificate.verify import verify
from tests.unit.certificate.certificate_cases import Issuer
from tests.unit.certificate.certificate_evidence_cases import KINDS
from tests.unit.certificate.certificate_reports import KEY, failed_lines, refused, report_on
from tests.unit.certificate.certificate_v1_cases import issue_v1, pack_v1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("before", [(), ("tr", "discarded"), ("heuristic", "retrain", "tr")])
def test_honest_certificates_verify_wherever_they_stand_in_a_chain(kind, before):
    family = KINDS[kind][3]
    tier = "proved" if family in CONVEX_FAMILIES else "conditional"
    names = {"heuristic": "tr-heuristic", "retrain": "retrain-proved"}
    issuer = Issuer(KEY, family="mlp" if tier == "conditional" else family)
    for earlier in before:
        issuer.issue(names.get(earlier, f"{earlier}-{tier}"))
    issued = issuer.issue(kind)
    report = report_on(
        issuer,
        receipt=issued.receipts[0],
        subject="subject-0",
        since=issuer.head(2).encode(),
        keys=issuer.keys,
    )
    assert report.verified, report
    assert [line.number for line in report.lines] == list(range(1, 10))
    assert all(line.ok for line in report.lines)


def test_what_nobody_asked_for_is_neither_passed_nor_failed():
    issuer = Issuer(KEY)
    issued = issuer.issue()
    report = verify(issuer.pack(), weights=issued.weights)
    assert report.verified
    assert [(line.number, line.ok) for line in report.lines if not line.ok] == [(8, None)]


def test_report_says_what_it_does_not_prove():
    issuer = Issuer(KEY)
    issuer.issue()
    words = " ".join(report_on(issuer).does_not_prove)
    assert "measured honestly" in words
    assert "came with the pack" in words
    assert "came with the pack" not in " ".join(report_on(issuer, keys=issuer.keys).does_not_prove)


def test_an_estimate_says_so_first():
    issuer = Issuer(KEY)
    issuer.issue("tr-heuristic")
    assert report_on(issuer).headline.startswith("ESTIMATE, NOT A GUARANTEE")


def test_unknown_and_expired_keys_are_refused():
    issuer = Issuer(KEY)
    issued = issuer.issue()
    stranger = KeySet(keys=(PublicKey.of(SigningKey.generate()),))
    report = report_on(issuer, keys=stranger)
    assert failed_lines(report) == [1], "the other lines depend on the signature"
    assert "unknown key" in report.lines[0].detail
    assert not report.verified
    for line in report.lines[1:]:
        assert line.ok is None
        assert line.detail == "not checked: there is no signed and readable statement"
    expired = KeySet(keys=(PublicKey.of(KEY, valid_until=issued.index),))
    assert "valid for places [0, 3)" in report_on(issuer, keys=expired).lines[0].detail


def test_old_certificates_verify_under_the_key_of_their_time_after_rotation():
    issuer = Issuer(KEY)
    old = issuer.issue()
    handover = issuer.log.size
    issuer.key = SigningKey.generate()
    issuer.keys = KeySet(
        keys=(PublicKey.of(KEY, valid_until=handover), PublicKey.of(issuer.key, valid_from=handover))
    )
    new = issuer.issue()
    assert report_on(issuer, old).verified
    assert report_on(issuer, new).verified
    issuer.key = KEY
    late = issuer.issue()
    assert 1 in failed_lines(report_on(issuer, late))


def test_a_false_place_cannot_make_a_key_valid():
    """An expired key's certificate, presented as if it stood earlier in the log."""
    issuer = Issuer(KEY)
    issued = issuer.issue()
    issuer.keys = KeySet(
        keys=(PublicKey.of(KEY, valid_until=issued.index), PublicKey.of(SigningKey.generate()))
    )
    report = verify(issuer.pack(index=issued.index - 1), weights=issued.weights)
    assert 7 in failed_lines(report)


def test_another_file_and_a_file_that_should_be_gone_are_refused():
    issuer = Issuer(KEY)
    issued = issuer.issue()
    assert issued.weights is not None
    refused(report_on(issuer, weights=issued.weights + b"\0"), 3, "the certificate is for")
    issuer.issue("discarded-proved")
    refused(report_on(issuer, weights=issued.weights), 3, "destroyed")


def test_without_the_file_there_is_a_verdict_of_its_own_that_names_what_was_not_checked():
    issuer = Issuer(KEY)
    issued = issuer.issue()
    report = verify(issuer.pack(), receipt=issued.receipts[0], subject="subject-0", keys=issuer.keys)
    assert report.verified
    assert report.verdict == "verified without the model file"
    assert report.to_dict()["verdict"] == report.verdict
    assert (report.lines[2].ok, report.lines[2].detail) == (None, "not checked: no model file was given")
    assert "no file was checked" in " ".join(report.does_not_prove)
    assert "exact file" not in " ".join(report.proves)
    assert report_on(issuer).verdict == "verified"
    issuer.issue("discarded-proved")
    assert verify(issuer.pack()).verdict == "verified", "there is no file to check"
    assert verify(issuer.pack(), weights=b"a file").verdict == "not verified"


def test_a_certificate_of_format_1_verifies_and_says_what_its_noise_is_worth():
    issuer = Issuer(KEY)
    issue_v1(issuer)
    issued = issue_v1(issuer)
    for pack in (pack_v1(issuer), issuer.pack()):
        report = verify(pack.to_bytes(), weights=issued.weights, evidence=issued.evidence, keys=issuer.keys)
        assert report.verified, report
        assert "format 1" in report.headline
        assert "a known attack" in " ".join(report.does_not_prove)
        unproved = "order in which the earlier certificates" in " ".join(report.does_not_prove)
        assert unproved == (pack.format == "urn:lethe:pack:v1")


def test_a_missing_model_file_is_unusable(tmp_path):
    issuer = Issuer(KEY)
    issuer.issue()
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(UnusableInput, match="model file"):
            verify(issuer.pack(), weights=path)


@pytest.fixture
def chain() -> Issuer:
    issuer = Issuer(KEY)
    for kind in ("tr-proved", "discarded-proved", "tr-heuristic", "tr-proved"):
        issuer.issue(kind)
    return issuer


def test_receipts_of_other_certificates_and_subjects_are_refused(chain):
    first, last = chain.chain[0], chain.chain[-1]
    refused(report_on(chain, receipt=first.receipts[0]), 9, "another certificate")
    refused(report_on(chain, receipt=last.receipts[0], subject="subject-1"), 9, "not about this subject")
    assert report_on(chain, receipt=last.receipts[1].to_bytes(), subject="subject-1").verified


def test_a_pack_can_carry_evidence_and_receipt():
    issuer = Issuer(KEY)
    issued = issuer.issue()
    pack = issuer.pack(evidence=issued.evidence, receipt=issued.receipts[2])
    report = verify(Pack.read(pack.to_bytes(), "pack"), weights=issued.weights)
    assert report.verified
    assert [line.number for line in report.lines if line.ok] == list(range(1, 10))


def test_a_statement_that_is_not_ours_is_refused_by_line_two():
    issuer = Issuer(KEY)
    issued = issuer.issue()
    payload = issued.envelope.payload.replace(b"unlearning:v2", b"unlearning:v9")
    issued.envelope = sign(payload, KEY)
    issued.index = issuer.log.append(leaf_hash(bytes.fromhex(issued.envelope.digest)))
    report = report_on(issuer)
    assert failed_lines(report) == [2]
    assert "unlearning:v9" in report.lines[1].detail
    assert commit(issued.evidence)

"""Reports on an issuer's certificates, and the assertion that one check refuses them."""

from __future__ import annotations

from typing import Any

from lethe.certificate.assurance import CONVEX_FAMILIES
from lethe.certificate.errors import CHECKLIST
from lethe.certificate.keys import SigningKey
from lethe.certificate.verify import VerificationReport, verify
from tests.unit.certificate.certificate_cases import Issued, Issuer
from tests.unit.certificate.certificate_evidence_cases import KINDS

KEY = SigningKey.generate()


def report_on(issuer: Issuer, issued: Issued | None = None, **inputs: Any) -> VerificationReport:
    issued = issued or issuer.chain[-1]
    return verify(issuer.pack(issued), **({"weights": issued.weights, "evidence": issued.evidence} | inputs))


def failed_lines(report: VerificationReport) -> list[int]:
    return [line.number for line in report.failed]


def refused(report: VerificationReport, number: int, words: str) -> None:
    """Assert that exactly this check failed, with these words in its detail."""
    assert failed_lines(report) == [number], report
    assert words in report.failed[0].detail, report.failed[0].detail
    assert report.failed[0].title == CHECKLIST[number - 1].title
    assert not report.verified
    assert report.proves == ()


def resigned(kind: str = "tr-proved", *, evidence_edit: dict[str, Any] | None = None, **edit: Any) -> Issuer:
    """Return an issuer whose last certificate was edited before it was signed and logged."""
    family = KINDS[kind][3]
    issuer = Issuer(KEY, family=family)
    issuer.issue("tr-proved" if family in CONVEX_FAMILIES else "retrain-proved")
    issuer.issue(kind, edit=edit, evidence_edit=evidence_edit)
    return issuer

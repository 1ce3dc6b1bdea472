"""Reports on an issuer's certificates, and how a test says which check must refuse them."""

from __future__ import annotations

from typing import Any

from certificate_cases import Issued, Issuer
from certificate_evidence_cases import KINDS

from certificate.assurance import CONVEX_FAMILIES
from certificate.errors import CHECKLIST
from certificate.keys import SigningKey
from certificate.verify import Report, verify

KEY = SigningKey.generate()


def report_on(issuer: Issuer, issued: Issued | None = None, **given_too: Any) -> Report:
    issued = issued or issuer.chain[-1]
    return verify(issuer.pack(issued), **({"model": issued.model, "evidence": issued.evidence} | given_too))


def failed_lines(report: Report) -> list[int]:
    return [line.number for line in report.failed]


def refused(report: Report, number: int, words: str) -> None:
    """Exactly this check failed, and says why."""
    assert failed_lines(report) == [number], report
    assert words in report.failed[0].detail, report.failed[0].detail
    assert report.failed[0].title == CHECKLIST[number - 1].title
    assert not report.verified
    assert report.proves == ()


def resigned(kind: str = "tr-proved", *, evidence_edit: dict[str, Any] | None = None, **edit: Any) -> Issuer:
    """An issuer whose last certificate was edited before it was signed and logged."""
    family = KINDS[kind][3]
    issuer = Issuer(KEY, family=family)
    issuer.issue("tr-proved" if family in CONVEX_FAMILIES else "retrain-proved")
    issuer.issue(kind, edit=edit, evidence_edit=evidence_edit)
    return issuer

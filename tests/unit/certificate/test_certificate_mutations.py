"""An insider with the key changes one field at a time. Claims that no longer follow are refused."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tests.unit.certificate.certificate_mutations import ALLOWED, CHAINS, SURVEYS, Counts, table

PAGE = Path(__file__).parents[3] / "docs" / "certificate.md"


@cache
def counts_of(name: str) -> Counts:
    return SURVEYS[name]()


@pytest.mark.parametrize("name", SURVEYS)
def test_every_change_is_refused_by_its_line_or_allowed_for_a_reason(name):
    counts = counts_of(name)
    assert counts.surviving == []
    assert counts.misplaced == []
    assert counts.tried == counts.refused + sum(counts.allowed.values())
    assert counts.refused > (500 if name in CHAINS else 60)


def test_every_allowance_is_used_and_the_page_has_the_counts():
    """Stale: put the output of `python -m tests.unit.certificate.certificate_mutations` on the page."""
    surveys = {name: counts_of(name) for name in SURVEYS}
    used = {reason for counts in surveys.values() for reason in counts.allowed}
    assert {entry.reason for entry in ALLOWED} == used
    assert table(surveys) in PAGE.read_text(encoding="utf-8")

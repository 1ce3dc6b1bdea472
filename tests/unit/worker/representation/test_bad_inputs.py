"""Bad graphs, tokenizers, images and rows are refused with one clear sentence each, and nothing else."""

import pytest

from tests.unit.worker.representation import bad_graphs, bad_rows
from tests.unit.worker.representation.case import Case, assert_clear, reasons_of
from worker.representation.errors import RepresentationError, RowError

CASES = [*bad_graphs.cases(), *bad_rows.cases()]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_bad_input_is_refused_with_clear_reasons(case: Case):
    with pytest.raises((RepresentationError, RowError)) as caught:
        case.attempt()
    assert type(caught.value) is case.error
    reasons = reasons_of(caught.value)
    assert_clear(reasons)
    assert any(case.reason in reason for reason in reasons), reasons


def test_the_table_has_at_least_two_hundred_distinct_inputs():
    assert len({case.name for case in CASES}) == len(CASES) >= 200

"""The quality gate: a floor depends on the new version's own score, a comparison on the version before."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.db.policy import QualityGate
from certificate.evidence import Utility
from worker.pipeline.quality import comparison_reasons, floor_reasons

FLOOR = QualityGate(min_f1=80.0, max_loss=0.5)
BOUNDED = QualityGate(max_f1_drop=1.0, max_loss_rise=0.1)
SCORE = st.none() | st.floats(0, 100)


def utility(
    f1: float | None, loss: float | None, f1_before: float | None = 99, loss_before: float | None = 0
) -> Utility:
    return Utility(f1_before=f1_before, f1_after=f1, loss_before=loss_before, loss_after=loss)


@pytest.mark.parametrize(
    ("f1", "loss", "reasons"),
    [
        (80.0, 0.5, []),
        (79.9, 0.5, ["F1 is 79.9 on the holdout, the policy wants 80"]),
        (80.0, 0.51, ["the loss is 0.51 on the holdout, the policy allows 0.5"]),
        (None, 0.4, []),
        (None, None, []),
    ],
)
def test_the_floor_is_the_new_versions_own(f1: float | None, loss: float | None, reasons: list[str]) -> None:
    assert floor_reasons(FLOOR, utility(f1, loss)) == reasons
    assert comparison_reasons(FLOOR, utility(f1, loss)) == []


@given(SCORE, SCORE, SCORE, SCORE)
def test_what_the_version_before_scored_does_not_move_the_floor(
    f1: float | None, loss: float | None, f1_before: float | None, loss_before: float | None
) -> None:
    assert floor_reasons(FLOOR, utility(f1, loss, f1_before, loss_before)) == floor_reasons(
        FLOOR, utility(f1, loss)
    )


def test_a_comparison_is_with_the_version_before() -> None:
    assert comparison_reasons(BOUNDED, utility(90.0, 1.0, 90.5, 0.95)) == []
    assert len(comparison_reasons(BOUNDED, utility(90.0, 1.0, 92.0, 0.5))) == 2
    assert floor_reasons(BOUNDED, utility(0.0, 100.0)) == []

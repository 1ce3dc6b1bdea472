"""The quality gate: a floor depends on the new version's own score, a comparison on the previous version."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.db.states import HeldReason
from lethe.certificate.evidence import Utility
from lethe.policy import QualityGate
from worker.batch.quality_gate import check_quality, comparison_reasons, floor_reasons

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
        (79.9, 0.5, ["F1 is 79.9 on the holdout, but the policy requires at least 80"]),
        (80.0, 0.51, ["the loss is 0.51 on the holdout, but the policy allows at most 0.5"]),
        (None, 0.4, []),
        (None, None, []),
    ],
)
def test_the_floor_depends_on_the_new_version_alone(
    f1: float | None, loss: float | None, reasons: list[str]
) -> None:
    assert floor_reasons(FLOOR, utility(f1, loss)) == reasons
    assert comparison_reasons(FLOOR, utility(f1, loss)) == []


@given(SCORE, SCORE, SCORE, SCORE)
def test_scores_of_the_previous_version_do_not_affect_the_floor(
    f1: float | None, loss: float | None, f1_before: float | None, loss_before: float | None
) -> None:
    assert floor_reasons(FLOOR, utility(f1, loss, f1_before, loss_before)) == floor_reasons(
        FLOOR, utility(f1, loss)
    )


def test_a_comparison_depends_on_the_previous_version() -> None:
    assert comparison_reasons(BOUNDED, utility(90.0, 1.0, 90.5, 0.95)) == []
    assert len(comparison_reasons(BOUNDED, utility(90.0, 1.0, 92.0, 0.5))) == 2
    assert floor_reasons(BOUNDED, utility(0.0, 100.0)) == []


@pytest.mark.parametrize(
    ("fall", "rise", "held"), [(1.0, 0.1, []), (1.5, 0.1, ["F1"]), (1.0, 0.15, ["loss"])]
)
def test_a_comparison_allows_just_what_the_policy_says(fall: float, rise: float, held: list[str]) -> None:
    reasons = comparison_reasons(BOUNDED, utility(90.0, rise, 90.0 + fall, 0.0))
    assert [word for reason in reasons for word in ("F1", "loss") if word in reason] == held


@pytest.mark.parametrize(("gate", "score"), [(None, utility(0.0, 9.0)), (FLOOR, None), (BOUNDED, None)])
def test_without_a_gate_or_a_score_every_draw_passes(gate: QualityGate | None, score: Utility | None) -> None:
    assert check_quality(gate, score, mechanism="tr") is None


def test_a_held_draw_names_every_reason() -> None:
    both = QualityGate(min_f1=80.0, max_loss=0.5, max_f1_drop=1.0, max_loss_rise=0.1)
    refusal = check_quality(both, utility(70.0, 0.9, 90.0, 0.2), mechanism="tr")
    assert refusal is not None
    assert refusal.reason is HeldReason.QUALITY_GATE
    assert refusal.detail.split("; ") == [
        "F1 is 70 on the holdout, but the policy requires at least 80",
        "the loss is 0.9 on the holdout, but the policy allows at most 0.5",
        "F1 falls by 20 on the holdout, but the policy allows at most 1",
        "the loss rises by 0.7 on the holdout, but the policy allows at most 0.1",
    ]


def test_a_retrained_draw_is_held_to_the_floor_and_never_compared() -> None:
    score = utility(70.0, 0.9, 90.0, 0.2)
    assert check_quality(BOUNDED, score, mechanism="retrain") is None
    floor = check_quality(FLOOR, score, mechanism="retrain")
    assert floor is not None
    assert floor.detail == "; ".join(floor_reasons(FLOOR, score))


def test_a_model_without_f1_is_gated_by_its_loss_alone() -> None:
    both = QualityGate(min_f1=80.0, max_loss=0.5)
    assert check_quality(both, utility(None, 0.5, None, 0.4), mechanism="tr") is None
    assert check_quality(both, utility(None, 0.6, None, 0.4), mechanism="tr") is not None

"""The dashboard has words for every state, kind, reason and term that the service can show."""

from enum import StrEnum
from typing import Any, get_args

import pytest

from app.db.states import (
    BatchState,
    BatchStep,
    EventKind,
    HeldReason,
    ModelState,
    SealReason,
    SubjectOutcome,
    TaskOutcome,
    TaskState,
    VersionState,
)
from app.gateway.dashboard import wording
from lethe.certificate.vocabulary import AssumptionName
from lethe.policy import Method


@pytest.mark.parametrize(
    ("values", "table"),
    [
        (TaskState, wording.ERASURE),
        (BatchState, wording.BATCH),
        (ModelState, wording.MODEL),
        (VersionState, wording.VERSION),
        (TaskOutcome, wording.OUTCOME),
        (HeldReason, wording.HELD),
        (BatchStep, wording.STEPS),
        (SealReason, wording.SEAL_REASON),
        (EventKind, wording.EVENT),
    ],
)
def test_every_value_has_words(values: type[StrEnum], table: dict[str, Any]) -> None:
    assert set(table) == set(values)


def test_steps_are_shown_in_the_order_in_which_they_run() -> None:
    assert list(wording.STEPS) == list(BatchStep)


def test_every_mechanism_and_assumption_has_words() -> None:
    assert set(wording.MECHANISM) == {*get_args(Method), "discarded"}
    assert set(wording.ASSUMPTION) == set(get_args(AssumptionName))


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_a_probability_is_never_rounded_down(epsilon: float) -> None:
    for exponent in range(1, 12):
        probability = epsilon * 10.0**-exponent / 10
        text = wording.format_probability(probability)
        stated = int(text.rstrip(" %")) / 100 if "%" in text else 1 / int(text.split()[-1].replace(",", ""))
        assert stated >= probability * (1 - 1e-9)


def test_every_stored_outcome_can_be_shown() -> None:
    assert {outcome.value for outcome in SubjectOutcome} < {outcome.value for outcome in TaskOutcome}

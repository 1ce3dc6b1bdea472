"""When waiting requests become a batch, and why."""

from datetime import UTC, datetime, timedelta

import pytest

from app.db.states import SealReason
from app.dispatcher.sealing import DEADLINE_MARGIN, WaitingRequests, reason_to_seal
from lethe.policy import Policy

NOW = datetime(2030, 1, 1, tzinfo=UTC)
POLICY = Policy(batch_subjects=10, min_batch_subjects=3, batch_age_seconds=60)
YOUNG, OLD = timedelta(seconds=59), timedelta(seconds=60)
FAR, NEAR = DEADLINE_MARGIN + timedelta(seconds=1), DEADLINE_MARGIN


def decide(
    people: int,
    *,
    age: timedelta = YOUNG,
    left: timedelta = FAR,
    flush: bool = False,
    most_people: int | None = None,
) -> SealReason | None:
    waiting = WaitingRequests(people if most_people is None else most_people, NOW - age, NOW + left)
    return reason_to_seal(POLICY, waiting, flush_requested=flush, now=NOW, count_people=lambda: people)


@pytest.mark.parametrize(
    ("people", "age", "left", "reason"),
    [
        (9, YOUNG, FAR, None),
        (10, YOUNG, FAR, SealReason.COUNT),
        (10, OLD, NEAR, SealReason.COUNT),
        (2, OLD, FAR, None),
        (3, YOUNG, FAR, None),
        (3, OLD, FAR, SealReason.AGE),
        (3, OLD, NEAR, SealReason.AGE),
        (1, YOUNG, NEAR, SealReason.DEADLINE),
        (2, OLD, NEAR, SealReason.DEADLINE),
        (1, OLD, timedelta(days=-1), SealReason.DEADLINE),
    ],
)
def test_number_age_and_deadline_decide(
    people: int, age: timedelta, left: timedelta, reason: SealReason | None
) -> None:
    assert decide(people, age=age, left=left) == reason


@pytest.mark.parametrize("people", [1, 3, 10])
def test_a_flush_seals_however_few_people_wait(people: int) -> None:
    assert decide(people, flush=True) == SealReason.FLUSH


def test_one_person_in_many_requests_does_not_fill_a_batch() -> None:
    """The bound counts the person once per request. Only the exact number may seal."""
    assert decide(1, most_people=50) is None
    assert decide(1, most_people=50, age=OLD) is None
    assert decide(1, most_people=50, age=OLD, left=NEAR) == SealReason.DEADLINE


@pytest.mark.parametrize(
    ("most_people", "age", "flush"), [(9, YOUNG, False), (2, OLD, False), (50, OLD, True)]
)
def test_people_are_not_counted_if_the_number_cannot_matter(
    most_people: int, age: timedelta, flush: bool
) -> None:
    def count() -> int:
        raise AssertionError("every row of a person was read for nothing")

    waiting = WaitingRequests(most_people, NOW - age, NOW + FAR)
    reason = reason_to_seal(POLICY, waiting, flush_requested=flush, now=NOW, count_people=count)
    assert reason == (SealReason.FLUSH if flush else None)


def test_the_smallest_batch_has_ten_people_unless_a_full_one_is_smaller() -> None:
    default = Policy(batch_age_seconds=0)
    waiting = WaitingRequests(9, NOW, NOW + FAR)
    small = Policy(batch_subjects=5, batch_age_seconds=0)
    for policy, reason in ((default, None), (small, SealReason.COUNT)):
        decided = reason_to_seal(policy, waiting, flush_requested=False, now=NOW, count_people=lambda: 9)
        assert decided == reason

"""Deadlines for the answers of a database."""

import pytest

from app.db.deadlines import GRACE_SECONDS, REFUSED_SECONDS, AnswerDeadline, DatabaseHangs


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_every_answer_gives_the_full_time_again() -> None:
    clock = Clock()
    deadline = AnswerDeadline(10.0, clock)
    deadline.begin()
    clock.now += 8
    assert deadline.seconds_left() == 2 + GRACE_SECONDS
    deadline.restart()
    assert deadline.seconds_left() == 10 + GRACE_SECONDS
    clock.now += 60
    assert deadline.seconds_left() == 0


def test_after_a_deadline_has_passed_nothing_new_waits_for_a_while() -> None:
    clock = Clock()
    deadline = AnswerDeadline(10.0, clock)
    deadline.give_up()
    with pytest.raises(DatabaseHangs):
        deadline.begin()
    clock.now += REFUSED_SECONDS
    deadline.begin()

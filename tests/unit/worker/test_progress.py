"""Percent and time left: within bounds, never going back, and absent while they are unknown."""

import math

from hypothesis import given
from hypothesis import strategies as st

from worker.batch.progress import ProgressEstimate

anything = st.floats(allow_nan=True, allow_infinity=True)
lasting = st.floats(0, 1e4)
targets = st.floats(1e-12, 1e6)


@given(targets, st.lists(st.tuples(anything, lasting), max_size=30), st.floats(1e-3, 1e6))
def test_percent_stays_within_bounds_and_never_falls(
    target: float, steps: list[tuple[float, float]], limit: float
) -> None:
    estimate, seconds, before = ProgressEstimate(target, limit), 0.0, 0
    for distance, more in steps:
        seconds += more
        said = estimate.after(distance, seconds)
        percent, left = said["percent"], said["eta_seconds"]
        if percent is None:
            assert before == 0
            assert left is None
            continue
        assert isinstance(percent, int)
        assert before <= percent <= 100
        assert percent < 100 or before == 100 or distance <= target
        assert left is None or 0 <= left <= max(limit - seconds, 0) + 0.1
        before = percent


@given(targets, st.lists(st.sampled_from([math.nan, math.inf, -1.0]), max_size=5))
def test_without_a_distance_nothing_is_estimated(target: float, distances: list[float]) -> None:
    estimate = ProgressEstimate(target, 10.0)
    for n, distance in enumerate(distances):
        assert estimate.after(distance, float(n)) == {"percent": None, "eta_seconds": None}


@given(st.integers(2, 12), st.floats(0.1, 100))
def test_the_time_left_of_steady_progress_is_predicted(digits: int, pace: float) -> None:
    """One digit per step at a steady pace: the time left is predicted to within a percent's rounding."""
    estimate = ProgressEstimate(10.0**-digits, math.inf)
    for step in range(digits + 1):
        said = estimate.after(10.0**-step * 1.0000001, pace * (step + 1))
        left = said["eta_seconds"]
        if 0 < step < digits:
            true = pace * (digits - step)
            assert left is not None
            assert 0.99 * true - 0.1 <= left <= true * (1 + digits / 50) + pace * digits / 20 + 0.1
    assert estimate.after(10.0**-digits, pace * (digits + 2)) == {"percent": 100, "eta_seconds": 0.0}


def test_a_first_step_within_the_target_is_complete() -> None:
    assert ProgressEstimate(1.0, 10.0).after(0.5, 1.0) == {"percent": 100, "eta_seconds": 0.0}

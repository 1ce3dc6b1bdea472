from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.evaluation.biased_deletions import PAPER_WEIGHTS, biased_deletion, deletion_reaching
from worker.evaluation.class_drift import measure_class_drift

label_lists = st.lists(st.integers(0, 3), min_size=2, max_size=40).map(np.array)
seeds = st.integers(0, 2**32 - 1)


def histogram(labels: np.ndarray) -> dict[str, int]:
    return {str(label): count for label, count in Counter(labels.tolist()).items()}


@settings(max_examples=50, deadline=None)
@given(label_lists, seeds, st.data())
def test_a_deletion_has_the_size_asked_for_and_begins_every_larger_one(labels, seed, data) -> None:
    small = data.draw(st.integers(0, len(labels) - 1))
    large = data.draw(st.integers(small, len(labels) - 1))
    first = biased_deletion(labels, small, weights={0: 9.0}, seed=seed)
    second = biased_deletion(labels, large, weights={0: 9.0}, seed=seed)
    assert len(np.unique(first.rows)) == small
    assert set(first.rows) <= set(second.rows)
    assert first.drift == measure_class_drift(histogram(labels), histogram(labels[first.rows]))
    np.testing.assert_array_equal(
        first.rows, biased_deletion(labels, small, weights={0: 9.0}, seed=seed).rows
    )


def test_rows_follow_the_law_of_successive_sampling() -> None:
    labels, mass = np.array([0, 1, 1, 2]), np.array([5.0, 1.0, 1.0, 3.0])
    expected: Counter[tuple[int, ...]] = Counter()
    for pair in permutations(range(4), 2):
        expected[tuple(sorted(pair))] += (
            mass[pair[0]] / mass.sum() * mass[pair[1]] / (mass.sum() - mass[pair[0]])
        )
    draws = 2000
    seen = Counter(
        tuple(biased_deletion(labels, 2, weights={0: 5, 2: 3}, seed=seed).rows.tolist())
        for seed in range(draws)
    )
    chi = sum((seen[pair] - draws * p) ** 2 / (draws * p) for pair, p in expected.items())
    assert chi < 20.5  # χ² with 5 degrees of freedom, 0.1 %


@settings(max_examples=50, deadline=None)
@given(
    label_lists,
    seeds,
    st.floats(0, 0.5),
    st.sampled_from(["retained_original", "original_retained"]),
)
def test_the_target_divergence_is_met_as_closely_as_any_size_up_to_the_crossing(
    labels, seed, target, direction
) -> None:
    def divergence(count: int) -> float:
        drift = biased_deletion(labels, count, seed=seed).drift
        kl = drift.kl_retained_original if direction == "retained_original" else drift.kl_original_retained
        return np.inf if kl is None else kl

    curve = [divergence(count) for count in range(len(labels))]
    tolerance = 1e-9
    if max(curve) < target - tolerance:
        with pytest.raises(ValueError, match="no deletion reaches"):
            deletion_reaching(labels, target, seed=seed, direction=direction)
    elif max(curve) > target + tolerance:
        size = len(deletion_reaching(labels, target, seed=seed, direction=direction).rows)
        crossing = next(count for count, value in enumerate(curve) if value >= target - tolerance)
        best = min(abs(curve[count] - target) for count in (max(0, crossing - 1), crossing, size))
        assert abs(curve[size] - target) <= best + tolerance
        assert size <= crossing + 1


def test_the_papers_divergence_is_found_on_ten_balanced_classes() -> None:
    labels = np.repeat(np.arange(10), 6000)
    deletion = deletion_reaching(labels, 0.104, weights=PAPER_WEIGHTS, seed=3)
    assert deletion.drift.kl_retained_original == pytest.approx(0.104, abs=2e-5)
    assert 9_000 < len(deletion.rows) < 11_000
    assert deletion.drift.erased["0"] + deletion.drift.erased["7"] > 0.9 * len(deletion.rows)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6)), min_size=2, max_size=30), seeds, st.data())
def test_subjects_go_whole_and_no_more_of_them_than_needed(pairs, seed, data) -> None:
    labels, subjects = (np.array(column) for column in zip(*pairs, strict=True))
    count = data.draw(st.integers(1, len(labels)))
    rows = biased_deletion(labels, count, seed=seed, subjects=subjects).rows
    erased = set(subjects[rows])
    np.testing.assert_array_equal(rows, np.flatnonzero(np.isin(subjects, list(erased))))
    sizes = Counter(subjects.tolist())
    assert count <= len(rows) < count + max(sizes.values())


def test_a_class_of_weight_zero_is_left_alone() -> None:
    labels = np.array([0, 0, 1, 1])
    assert set(biased_deletion(labels, 2, weights={0: 0.0}, seed=1).rows) == {2, 3}
    with pytest.raises(ValueError, match="2 can be drawn"):
        biased_deletion(labels, 3, weights={0: 0.0}, seed=1)
    with pytest.raises(ValueError, match="not negative"):
        biased_deletion(labels, 1, weights={0: -1.0}, seed=1)

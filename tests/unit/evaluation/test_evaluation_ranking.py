import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from worker.evaluation.ranking import Ranking, auc, interval, measurable, resamples, tpr_at

# few distinct values, so that ties are common
scores = st.lists(st.integers(-4, 4).map(float), min_size=1, max_size=25).map(np.array)


@settings(max_examples=50, deadline=None)
@given(scores, scores)
def test_auc_is_the_share_of_pairs_won_with_ties_counting_half(members, unseen) -> None:
    wins = [(m > u) + (m == u) / 2 for m in members for u in unseen]
    assert auc(members, unseen) == pytest.approx(np.mean(wins))
    assert auc(unseen, members) == pytest.approx(1 - np.mean(wins))
    assert auc(np.exp(members), np.exp(unseen)) == pytest.approx(auc(members, unseen))


@settings(max_examples=50, deadline=None)
@given(scores, scores, st.sampled_from([0.0, 0.01, 0.1, 0.25, 0.5, 1.0]))
def test_tpr_is_the_best_of_all_thresholds_within_the_false_positive_rate(members, unseen, fpr) -> None:
    thresholds = [*members, *unseen, math.inf]
    best = max(np.mean(members >= t) for t in thresholds if np.mean(unseen >= t) <= fpr)
    assert tpr_at(members, unseen, fpr) == pytest.approx(best)


@settings(max_examples=50, deadline=None)
@given(scores, scores, st.data())
def test_a_weight_stands_for_so_many_copies_of_the_row(members, unseen, data) -> None:
    counts = [
        data.draw(st.lists(st.integers(0, 3), min_size=len(side), max_size=len(side)).filter(any))
        for side in (members, unseen)
    ]
    weights = np.array([counts[0] + counts[1]], dtype=np.float64)
    member_copies, unseen_copies = np.repeat(members, counts[0]), np.repeat(unseen, counts[1])
    ranked = Ranking(members, unseen)
    assert ranked.auc(weights)[0] == pytest.approx(auc(member_copies, unseen_copies))
    assert ranked.tpr(weights, 0.3)[0] == pytest.approx(tpr_at(member_copies, unseen_copies, fpr=0.3))


def test_resamples_keep_each_groups_size_and_repeat_with_the_seed() -> None:
    batches = list(resamples(30, 50, replicates=7, seed=1))
    weights = np.concatenate(batches)
    assert weights.shape == (7, 80)
    assert (weights[:, :30].sum(1) == 30).all()
    assert (weights[:, 30:].sum(1) == 50).all()
    np.testing.assert_array_equal(weights, np.concatenate(list(resamples(30, 50, replicates=7, seed=1))))


def test_bootstrap_intervals_cover_the_true_auc_about_as_often_as_they_say() -> None:
    truth = stats.norm.cdf(1 / math.sqrt(2))  # P(N(1, 1) > N(0, 1))
    rng = np.random.default_rng(2)
    covered = 0
    for seed in range(150):
        members, unseen = rng.standard_normal(80) + 1, rng.standard_normal(80)
        drawn = np.concatenate(
            [Ranking(members, unseen).auc(w) for w in resamples(80, 80, replicates=300, seed=seed)]
        )
        estimate = interval(auc(members, unseen), drawn, 0.9)
        covered += estimate.low <= truth <= estimate.high
    assert 0.83 <= covered / 150 <= 0.97  # 0.90 ± 3 standard deviations


def test_low_rates_are_reported_only_with_enough_unseen_rows() -> None:
    assert measurable(499) == []
    assert measurable(500) == [0.01]
    assert measurable(5000) == [0.01, 0.001]


def test_nothing_to_rank_is_refused() -> None:
    with pytest.raises(ValueError, match="both members and unseen"):
        auc(np.array([]), np.array([1.0]))
    with pytest.raises(ValueError, match="finite"):
        auc(np.array([np.nan]), np.array([1.0]))

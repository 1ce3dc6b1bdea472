from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from worker.engine.families import Logistic, Ridge, Softmax
from worker.engine.rows import ArrayRows
from worker.engine.trust_region import train
from worker.evaluation.membership import (
    AttackSettings,
    cross_validated_scores,
    match_classes,
    membership_report,
    row_outputs,
)
from worker.evaluation.ranking import auc

WIDTH, CLASSES = 200, 3
QUICK = AttackSettings(replicates=300, seed=5)


def rows_of(rng: np.random.Generator, count: int, mix: list[float]) -> ArrayRows:
    """Labels are independent of features, so anything a model gets right is memorised."""
    return ArrayRows(rng.standard_normal((count, WIDTH)), rng.choice(CLASSES, count, p=mix))


def joined(*parts: ArrayRows) -> ArrayRows:
    features, targets = zip(*(next(iter(part.chunks(10**6))) for part in parts), strict=True)
    return ArrayRows(torch.cat(features), torch.cat(targets))


def fitted(rows: ArrayRows) -> torch.Tensor:
    return train(Softmax(rows, CLASSES, 1e-3), target=1e-4).w


def test_a_model_that_kept_its_members_is_told_from_one_that_never_had_them() -> None:
    rng = np.random.default_rng(0)
    forget = rows_of(rng, 300, [0.6, 0.3, 0.1])
    retained, unseen = rows_of(rng, 300, [0.3, 0.3, 0.4]), rows_of(rng, 900, [0.3, 0.3, 0.4])
    kept, retrained = fitted(joined(forget, retained)), fitted(retained)
    report = membership_report(
        Softmax(forget, CLASSES, 1.0),
        Softmax(unseen, CLASSES, 1.0),
        unlearned=kept,
        retrained=retrained,
        settings=QUICK,
    )
    assert report.members == report.unseen > 200
    for attack, delta in (("loss", report.delta_auc_loss), ("fitted", report.delta_auc_fitted)):
        guilty, innocent = getattr(report.unlearned, attack), getattr(report.retrained, attack)
        assert guilty.auc.low > 0.6, attack
        assert 0.42 < innocent.auc.value < 0.58, attack
        assert delta.value == pytest.approx(guilty.auc.value - innocent.auc.value)
        assert delta.low > 0.05, attack
    assert report.unlearned.loss.tpr[0.01] is None  # too few unseen rows to say


def test_equal_models_differ_by_exactly_nothing_because_the_bootstrap_is_paired() -> None:
    rng = np.random.default_rng(1)
    forget, unseen = rows_of(rng, 600, [0.4, 0.3, 0.3]), rows_of(rng, 900, [0.4, 0.3, 0.3])
    w = fitted(unseen)
    report = membership_report(
        Softmax(forget, CLASSES, 1.0),
        Softmax(unseen, CLASSES, 1.0),
        unlearned=w,
        retrained=w,
        settings=QUICK,
    )
    for delta in (report.delta_auc_loss, report.delta_auc_fitted):
        assert (delta.value, delta.low, delta.high) == (0, 0, 0)
    rate = report.unlearned.fitted.tpr[0.01]
    assert rate is not None
    assert 0 <= rate.low <= rate.value <= rate.high <= 1
    assert report.unlearned.fitted.tpr[0.001] is None


def test_a_report_repeats_with_its_seed() -> None:
    rng = np.random.default_rng(2)
    forget, unseen = (Softmax(rows_of(rng, 60, [0.4, 0.3, 0.3]), CLASSES, 1.0) for _ in range(2))
    unlearned, retrained = (fitted(rows_of(rng, 60, [0.4, 0.3, 0.3])) for _ in range(2))
    first, second = (
        membership_report(forget, unseen, unlearned=unlearned, retrained=retrained, settings=QUICK)
        for _ in range(2)
    )
    assert first == second


labels = st.lists(st.integers(0, 3), min_size=1, max_size=40).map(np.array)


@given(labels, labels, st.integers(0, 1000))
def test_both_sides_have_the_same_class_mix_and_as_many_rows_as_possible(members, unseen, seed) -> None:
    shared = Counter(members.tolist()) & Counter(unseen.tolist())
    if not shared:
        with pytest.raises(ValueError, match="no class in common"):
            match_classes(members, unseen, seed=seed)
        return
    inside, outside = match_classes(members, unseen, seed=seed)
    assert len(np.unique(inside)) == len(inside)
    assert Counter(members[inside].tolist()) == Counter(unseen[outside].tolist()) == shared


def test_the_fitted_attack_finds_nothing_where_there_is_nothing() -> None:
    rng = np.random.default_rng(3)
    members = np.arange(160) < 80
    aucs = []
    for seed in range(20):
        scores = cross_validated_scores(rng.standard_normal((160, 2)), members, folds=5, seed=seed)
        aucs.append(auc(scores[members], scores[~members]))
    assert np.mean(aucs) == pytest.approx(0.5, abs=0.05)  # standard deviation 0.067, of the mean 0.015


def test_the_fitted_attack_finds_either_sign_and_survives_a_constant_feature() -> None:
    rng = np.random.default_rng(4)
    members = np.arange(200) < 100
    for sign in (-1, 1):
        features = np.stack([sign * (rng.standard_normal(200) + 2 * members), np.full(200, 7.0)], axis=1)
        scores = cross_validated_scores(features, members, folds=5, seed=0)
        assert auc(scores[members], scores[~members]) > 0.85


def test_outputs_are_the_familys_losses_and_margins() -> None:
    rng = np.random.default_rng(5)
    x = rng.standard_normal((50, 4))
    softmax = Softmax(ArrayRows(x, rng.integers(0, 3, 50)), 3, 1.0)
    logistic = Logistic(ArrayRows(x, rng.integers(0, 2, 50)), 1.0)
    ridge = Ridge(ArrayRows(x, rng.standard_normal(50)), 1.0)
    for holdout in (softmax, logistic, ridge):
        w = torch.from_numpy(rng.standard_normal(holdout.dimension))
        (features, targets), *_ = holdout.chunks()
        out = row_outputs(holdout, w, classifier=holdout is not ridge)
        total, _ = holdout.residual(holdout.logits(w, features), targets)
        assert out.losses.sum() == pytest.approx(float(total))
        if holdout is not ridge:
            right = np.array(
                [
                    (z.argmax() if len(z) > 1 else z[0] > 0) == y
                    for z, y in zip(holdout.logits(w, features).T.numpy(), targets.numpy(), strict=True)
                ]
            )
            np.testing.assert_array_equal(out.margins > 0, right)


def test_ridge_is_attacked_without_classes() -> None:
    rng = np.random.default_rng(6)
    sides = [Ridge(ArrayRows(rng.standard_normal((40, 60)), rng.standard_normal(40)), 1e-3) for _ in range(2)]
    kept, retrained = (train(side, target=1e-4).w for side in sides)
    report = membership_report(*sides, unlearned=kept, retrained=retrained, classifier=False, settings=QUICK)
    assert report.unlearned.loss.auc.value > 0.95
    assert report.retrained.loss.auc.value < 0.05  # "unseen" rows are the ones this model learned

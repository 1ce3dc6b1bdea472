import numpy as np
import pytest
import torch
from sklearn import metrics

from worker.engine.families import Logistic, Ridge, Softmax
from worker.engine.rows import ArrayRows
from worker.evaluation.utility import classification, compare, micro_f1, regression


def softmax_holdout(seed: int, rows: int = 500) -> tuple[Softmax, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    features, labels = rng.standard_normal((rows, 5)), rng.integers(0, 4, rows)
    return Softmax(ArrayRows(features, labels), 4, 1.0), features, labels


def point(dimension: int, seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(dimension))


@pytest.mark.parametrize("chunk", [1, 7, 8192])
def test_softmax_scores_agree_with_scikit_learn_at_any_chunk_size(chunk: int) -> None:
    holdout, features, labels = softmax_holdout(0)
    holdout.chunk_rows = chunk
    w = point(holdout.dimension, 1)
    result = classification(holdout, w)
    z = holdout.logits(w, torch.from_numpy(features)).T
    predicted = z.argmax(1).numpy()
    assert result.rows == 500
    assert result.micro_f1 == pytest.approx(metrics.f1_score(labels, predicted, average="micro"))
    assert result.micro_f1 == pytest.approx(metrics.accuracy_score(labels, predicted))
    assert result.loss == pytest.approx(metrics.log_loss(labels, torch.softmax(z, 1).numpy()))
    by_class = metrics.f1_score(labels, predicted, average=None)
    assert [counts.f1 for counts in result.classes] == pytest.approx(list(by_class))


def test_one_logit_is_scored_as_two_classes() -> None:
    rng = np.random.default_rng(2)
    features, labels = rng.standard_normal((300, 3)), rng.integers(0, 2, 300)
    holdout = Logistic(ArrayRows(features, labels), 1.0)
    w = point(holdout.dimension, 3)
    z = holdout.logits(w, torch.from_numpy(features))[0].numpy()
    result = classification(holdout, w)
    assert result.micro_f1 == pytest.approx(np.mean((z > 0) == labels))
    assert result.classes[1].f1 == pytest.approx(metrics.f1_score(labels, z > 0))
    assert result.loss == pytest.approx(metrics.log_loss(labels, 1 / (1 + np.exp(-z))))


def test_micro_f1_weighs_rows_and_macro_would_not() -> None:
    holdout, _, _ = softmax_holdout(4)
    result = classification(holdout, point(holdout.dimension, 5))
    assert micro_f1(result.classes) == result.micro_f1
    assert sum(c.true_positives + c.false_negatives for c in result.classes) == result.rows
    assert sum(c.false_positives for c in result.classes) == sum(c.false_negatives for c in result.classes)


def test_delta_f1_is_positive_when_retraining_is_better_and_flips_with_the_models() -> None:
    rng = np.random.default_rng(6)
    features = rng.standard_normal((2000, 5))
    w = point(24, 7)
    labels = Softmax(ArrayRows(features, np.zeros(2000, int)), 4, 1.0)
    actual = labels.logits(w, torch.from_numpy(features)).argmax(0).numpy()
    holdout = Softmax(ArrayRows(features, actual), 4, 1.0)
    worse = w + 0.3 * point(24, 8)
    comparison = compare(holdout, retrained=w, unlearned=worse)
    assert comparison.retrained == classification(holdout, w)
    assert comparison.unlearned == classification(holdout, worse)
    assert comparison.delta_f1 == pytest.approx(100 * (1 - comparison.unlearned.micro_f1))
    assert 0 < comparison.low < comparison.delta_f1 < comparison.high
    flipped = compare(holdout, retrained=worse, unlearned=w)
    assert flipped.delta_f1 == -comparison.delta_f1
    assert (flipped.low, flipped.high) == pytest.approx((-comparison.high, -comparison.low))


def test_the_paired_interval_covers_the_true_difference() -> None:
    rng = np.random.default_rng(9)
    covered = 0
    for _ in range(300):  # one feature decides both models: right where x > 0.1, and where x > 0.15
        x = rng.uniform(size=(200, 1))
        holdout = Logistic(ArrayRows(x, np.ones(200, int)), 1.0)
        comparison = compare(
            holdout,
            retrained=torch.tensor([1.0, -0.1], dtype=torch.float64),
            unlearned=torch.tensor([1.0, -0.15], dtype=torch.float64),
        )
        covered += comparison.low <= 5.0 <= comparison.high
    assert 270 <= covered <= 300  # 95 % of 300 is 285, standard deviation 3.8


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_ridge_is_scored_by_rmse_and_r_squared(offset: float) -> None:
    rng = np.random.default_rng(10)
    features = rng.standard_normal((300, 4))
    targets = features @ rng.standard_normal(4) + rng.standard_normal(300) + offset
    holdout = Ridge(ArrayRows(features, targets), 1.0)
    holdout.chunk_rows = 64
    w = point(5, 11)
    w[-1] += offset
    predicted = holdout.logits(w, torch.from_numpy(features))[0].numpy()
    result = regression(holdout, w)
    assert result.rmse == pytest.approx(metrics.root_mean_squared_error(targets, predicted))
    assert result.r_squared == pytest.approx(metrics.r2_score(targets, predicted), rel=1e-8)
    assert result.loss == pytest.approx(result.rmse**2 / 2)


def test_r_squared_is_left_out_when_targets_do_not_vary() -> None:
    holdout = Ridge(ArrayRows(np.eye(3), np.ones(3)), 1.0)
    assert regression(holdout, point(4, 12)).r_squared is None


def test_a_model_that_overflows_is_refused_rather_than_scored() -> None:
    holdout, _, _ = softmax_holdout(13)
    with pytest.raises(ValueError, match="not finite"):
        classification(holdout, torch.full((holdout.dimension,), torch.nan, dtype=torch.float64))

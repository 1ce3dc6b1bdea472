import numpy as np
import pytest

from worker.evaluation.lira import u_lira

ROWS, WIDTH, BASE = 40, 30, 20


class Pipeline:
    """Return a pipeline: closed-form ridge regression on a base set and the masked rows, then unlearning."""

    def __init__(self, *, forget: float, noise: float, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.x, self.y = rng.standard_normal((ROWS + BASE, WIDTH)), rng.standard_normal(ROWS + BASE)
        self.forget, self.noise, self.rng = forget, noise, rng

    def __call__(self, mask: np.ndarray) -> np.ndarray:
        with_them = self.solve(np.append(mask, np.ones(BASE, bool)))
        without = self.solve(np.append(np.zeros(ROWS, bool), np.ones(BASE, bool)))
        w = (1 - self.forget) * with_them + self.forget * without
        w = w + self.noise * self.rng.standard_normal(WIDTH)
        return -np.abs(self.x[:ROWS] @ w - self.y[:ROWS])

    def solve(self, used: np.ndarray) -> np.ndarray:
        x, y = self.x[used], self.y[used]
        return np.linalg.solve(x.T @ x + 0.1 * np.eye(WIDTH), x.T @ y)


def attack(forget: float, noise: float, seed: int = 0) -> float:
    pipeline = Pipeline(forget=forget, noise=noise, seed=seed)
    return u_lira(pipeline, rows=ROWS, shadows=16, targets=4, seed=seed, replicates=50).attack.auc.value


def test_no_unlearning_is_found_and_half_of_it_too_and_retraining_is_not() -> None:
    none, half = attack(0.0, 0.05), attack(0.5, 0.05)
    exact = np.mean([attack(1.0, 0.05, seed) for seed in range(12)])
    assert none > 0.8
    assert 0.65 < half < none
    assert exact == pytest.approx(0.5, abs=0.05)  # twelve runs of 160 scores: standard deviation 0.012


def test_runs_that_agree_exactly_score_one_half() -> None:
    assert attack(1.0, 0.0) == 0.5


def test_the_interval_holds_the_estimate_and_low_rates_need_rows() -> None:
    pipeline = Pipeline(forget=0.0, noise=0.05, seed=1)
    result = u_lira(pipeline, rows=ROWS, shadows=8, seed=1, replicates=200)
    assert result.attack.auc.low <= result.attack.auc.value <= result.attack.auc.high
    assert result.attack.auc.low > 0.7
    assert result.attack.tpr == {0.01: None, 0.001: None}


@pytest.mark.parametrize(("shadows", "targets"), [(2, 2), (5, 2), (8, 3)])
def test_masks_come_in_pairs(shadows: int, targets: int) -> None:
    with pytest.raises(ValueError, match="even"):
        u_lira(lambda mask: mask.astype(float), rows=4, shadows=shadows, targets=targets, seed=0)

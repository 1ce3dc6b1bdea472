"""Rows are drawn by their contribution to the Hessian, and the mean stays unbiased."""

import pytest
import torch

from tests.unit.engine.network_problems import TINY, nearby, problem
from worker.engine.objective import Sampling
from worker.engine.sampling import weighted_sample


def test_weights_make_the_weighted_sum_right_on_average() -> None:
    scores = torch.tensor([0.0, 1.0, 5.0, 0.1, 30.0, 2.0])
    values = torch.tensor([3.0, -1.0, 4.0, 1.0, 5.0, 9.0])
    sums = []
    for seed in range(4000):
        picks, weights = weighted_sample(scores, 6, Sampling(3, seed))
        sums.append(float((values[picks] * weights).sum()))
    assert sum(sums) / len(sums) == pytest.approx(float(values.sum()), rel=0.02)


def test_rows_that_bend_more_are_drawn_more_and_none_counts_for_too_much() -> None:
    scores = torch.full((1000,), 1e-6)
    scores[100:110] = 1.0
    picks, weights = weighted_sample(scores, 1000, Sampling(200, 1))
    assert int(((picks >= 100) & (picks < 110)).sum()) > 150
    assert float(weights.max()) <= 1000 / 200 / 0.2 * 1.0001
    assert bool((picks[1:] >= picks[:-1]).all())


@pytest.mark.parametrize("scores", [None, torch.zeros(50), torch.full((50,), torch.inf)])
def test_without_usable_scores_every_row_has_the_same_chance(scores: torch.Tensor | None) -> None:
    picks, weights = weighted_sample(scores, 50, Sampling(10, 3))
    assert picks.tolist() == sorted(set(picks.tolist()))
    assert weights.tolist() == [5.0] * 10


def test_a_pass_over_the_rows_makes_the_samples_products_better() -> None:
    objective = problem(TINY[0], n=300, scale=3.0)
    w, v = nearby(objective, scale=2.0), torch.ones(objective.dimension, dtype=torch.float64)
    exact = objective.hvp(w, v)

    def error() -> float:
        draws = [objective.hessian(w, Sampling(30, seed)).product(v) - exact for seed in range(60)]
        return float(torch.stack(draws).square().sum(1).mean())

    even = error()
    objective.evaluate(w)
    scored = error()
    mean = torch.stack([objective.hessian(w, Sampling(30, seed)).product(v) for seed in range(300)]).mean(0)
    assert scored < 0.9 * even
    assert float((mean - exact).norm()) < 4 * (scored / 300) ** 0.5

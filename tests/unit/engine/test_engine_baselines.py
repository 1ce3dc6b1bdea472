"""The published methods, on problems where their answers are known."""

import pytest
import torch
from engine_problems import make_problem, random_point

from worker.engine import baselines
from worker.engine.training import train


def test_one_newton_step_solves_a_quadratic() -> None:
    objective = make_problem("ridge")
    w = baselines.newton_step(objective, random_point(objective))
    assert objective.certified_gradient(w).norm < 1e-10


def test_the_ceiling_approaches_the_largest_eigenvalue_from_below() -> None:
    objective = make_problem("softmax")
    w = random_point(objective)
    operator = objective.hessian(w)
    dense = torch.stack([operator.product(unit) for unit in torch.eye(len(w), dtype=torch.float64)])
    largest = float(torch.linalg.eigvalsh((dense + dense.T) / 2)[-1])
    estimate = baselines.curvature_ceiling(objective, w, iterations=100)
    assert estimate <= largest * (1 + 1e-9)
    assert estimate == pytest.approx(largest, rel=1e-2)


def test_capped_steps_are_gradient_steps_and_the_bound_before_the_run_covers_them() -> None:
    objective = make_problem("softmax", lam=0.1)
    start = random_point(objective)
    settings = baselines.CappedSettings()
    first = objective.certified_gradient(start).norm
    ceiling = baselines.curvature_ceiling(objective, start, iterations=100) * 2
    end = baselines.capped_steps(objective, start, settings, ceiling=ceiling)
    moved = float(torch.linalg.vector_norm(end - start))
    truth = train(objective, target=1e-8).w
    bound = baselines.corollary_distance(gradient_norm=first, floor=0.1, ceiling=ceiling, settings=settings)
    assert objective.value(end) < objective.value(start)
    assert moved <= settings.steps * settings.tau * first / ceiling
    assert float(torch.linalg.vector_norm(end - truth)) <= bound <= first / 0.1

"""Solves that reuse the directions of earlier ones, and the steps that the solver takes with them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from tests.unit.engine.linearised_problems import NETWORKS, nearby, problem
from worker.engine import recycling
from worker.engine.linearised.objective import LinearisedObjective
from worker.engine.recycling import RecycledSolves
from worker.engine.trust_region import Outcome, SolverSettings, minimise, train

SETTINGS = SolverSettings(least_sample=200, recycled_solves=True)


@dataclass
class Dense:
    """A symmetric matrix as an operator that touches a tenth of the rows."""

    matrix: Tensor
    fraction: float = 0.1

    def product(self, v: Tensor) -> Tensor:
        return self.matrix @ v


def matrix(size: int = 30) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    basis = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64))[0]
    whole: Tensor = basis @ torch.diag(torch.logspace(-3, 1, size, dtype=torch.float64)) @ basis.T
    return whole


def vectors(count: int, size: int = 30) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        yield torch.randn(size, generator=generator, dtype=torch.float64)


def solves(operator: Dense, *, forcing: float = 1e-8, limit: int = 200) -> RecycledSolves:
    fraction = operator.fraction
    return RecycledSolves(operator.product, None, fraction=fraction, forcing=forcing, least=0.0, limit=limit)


def test_every_solve_reaches_its_residual_and_later_ones_need_fewer_products() -> None:
    operator = Dense(matrix())
    recycled, products = solves(operator), []
    for r in vectors(3):
        before = recycled.products
        x = recycled.solve(r, 0.0)
        products.append(recycled.products - before)
        assert torch.linalg.vector_norm(operator.matrix @ x - r) <= 1.01e-8 * torch.linalg.vector_norm(r)
    assert products[1] < products[0] / 2
    assert recycled.passes == pytest.approx(0.1 * sum(products))


def test_a_right_hand_side_that_was_solved_before_costs_nothing() -> None:
    recycled = solves(Dense(matrix()))
    (r,) = vectors(1)
    x = recycled.solve(r, 0.0)
    before = recycled.products
    torch.testing.assert_close(recycled.solve(3 * r, 0.0), 3 * x, rtol=1e-6, atol=1e-9)
    assert recycled.products == before


def test_directions_that_no_longer_fit_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recycling, "_MOST_DIRECTIONS", 6)
    operator = Dense(matrix())
    recycled = solves(operator)
    for r in vectors(2):
        x = recycled.solve(r, 0.0)
        assert torch.linalg.vector_norm(operator.matrix @ x - r) <= 1.01e-8 * torch.linalg.vector_norm(r)


def test_an_operator_that_overflows_gives_a_finite_step() -> None:
    recycled = solves(Dense(torch.full((30, 30), torch.inf, dtype=torch.float64)))
    (r,) = vectors(1)
    assert torch.equal(recycled.solve(r, 0.0), torch.zeros(30, dtype=torch.float64))


def linearised() -> LinearisedObjective:
    network, width = NETWORKS["mlp-relu"]
    return problem(network, width, n=3000, lam=1e-2)


def test_near_the_minimiser_steps_come_from_one_sample_and_cost_fewer_passes() -> None:
    objective = linearised()
    ended = train(objective, target=1e-6, settings=SETTINGS)
    start = ended.w + 1e-2 * (nearby(objective) - objective.anchor)
    recycled = minimise(objective, start, target=1e-6, settings=SETTINGS)
    alone = minimise(objective, start, target=1e-6, settings=replace(SETTINGS, recycled_solves=False))
    assert ended.outcome is recycled.outcome is alone.outcome is Outcome.CERTIFIED
    assert float(torch.linalg.vector_norm(recycled.w - alone.w)) <= recycled.distance + alone.distance
    assert recycled.passes < alone.passes


def test_a_start_far_away_still_ends_with_a_certificate() -> None:
    objective = linearised()
    far = nearby(objective, scale=30.0)
    solution = minimise(objective, far, target=1e-6, settings=SETTINGS)
    assert solution.outcome is Outcome.CERTIFIED
    reference = train(objective, target=1e-6, settings=replace(SETTINGS, recycled_solves=False))
    gap = float(torch.linalg.vector_norm(solution.w - reference.w))
    assert gap <= solution.distance + reference.distance


def test_a_solve_with_one_sample_can_be_cancelled() -> None:
    objective = linearised()
    start = nearby(objective, scale=0.01)
    asked = iter([False, True])  # not before the first step, but at its first product
    solution = minimise(objective, start, target=1e-9, settings=SETTINGS, cancelled=lambda: next(asked, True))
    assert solution.outcome is Outcome.CANCELLED
    assert len(solution.steps) == 1
    assert not solution.steps[0].accepted

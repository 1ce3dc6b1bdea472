"""Subproblem solvers against dense linear algebra."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from worker.engine.subproblem import Quadratic, cauchy, steihaug


def spd(d: int, seed: int, condition: float = 1e3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    q, _ = torch.linalg.qr(torch.randn(d, d, generator=generator, dtype=torch.float64))
    matrix: torch.Tensor = (
        q @ torch.diag(torch.logspace(0, -math.log10(condition), d, dtype=torch.float64)) @ q.T
    )
    return matrix


def gradient(d: int, seed: int) -> torch.Tensor:
    return torch.randn(d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def model(hessian: torch.Tensor, g: torch.Tensor, p: torch.Tensor) -> float:
    return float(g @ p + 0.5 * p @ hessian @ p)


def test_an_unconstrained_solve_is_the_newton_step() -> None:
    hessian, g = spd(30, 0), gradient(30, 1)
    proposal = steihaug(Quadratic(g, lambda v: hessian @ v), math.inf, tolerance=1e-12, limit=500)
    assert_close(proposal.step, -torch.linalg.solve(hessian, g), rtol=1e-7, atol=1e-8)
    assert not proposal.boundary
    assert proposal.drop == pytest.approx(-model(hessian, g, proposal.step), rel=1e-9)


def test_a_good_preconditioner_needs_fewer_products_for_the_same_step() -> None:
    hessian, g = spd(40, 0, condition=1e5), gradient(40, 1)
    inverse = torch.linalg.inv(hessian + 1e-3 * torch.eye(40, dtype=torch.float64))
    plain = steihaug(Quadratic(g, lambda v: hessian @ v), math.inf, tolerance=1e-8, limit=500)
    helped = steihaug(
        Quadratic(g, lambda v: hessian @ v, lambda r: inverse @ r), math.inf, tolerance=1e-8, limit=500
    )
    assert helped.products < plain.products / 2
    assert helped.residual <= 1e-8


@given(seed=st.integers(0, 1000), radius=st.floats(1e-3, 1e2))
@settings(max_examples=60, deadline=None)
def test_a_step_stays_inside_and_never_does_worse_than_the_cauchy_point(seed: int, radius: float) -> None:
    hessian, g = spd(12, seed), gradient(12, seed + 1)
    quadratic = Quadratic(g, lambda v: hessian @ v)
    best = steihaug(quadratic, radius, tolerance=1e-10, limit=200)
    simple = cauchy(quadratic, radius, tolerance=0.0, limit=1)
    for proposal in (best, simple):
        assert float(torch.linalg.vector_norm(proposal.step)) <= radius * (1 + 1e-10)
        assert proposal.drop == pytest.approx(-model(hessian, g, proposal.step), rel=1e-6, abs=1e-12)
    assert best.drop >= simple.drop * (1 - 1e-9)
    # Nocedal & Wright 2e, lemma 4.3: the Cauchy point's guaranteed decrease
    norm = float(torch.linalg.vector_norm(g))
    assert simple.drop >= 0.5 * norm * min(radius, norm / float(torch.linalg.matrix_norm(hessian, 2))) * (
        1 - 1e-9
    )


def test_the_cauchy_point_is_the_minimiser_along_the_gradient() -> None:
    hessian, g = spd(10, 3), gradient(10, 4)
    proposal = cauchy(Quadratic(g, lambda v: hessian @ v), 1e6, tolerance=0.0, limit=1)
    exact = float(g @ g / (g @ hessian @ g))
    assert_close(proposal.step, -exact * g)


def test_negative_curvature_is_followed_to_the_boundary() -> None:
    hessian = torch.diag(torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64))
    g = torch.tensor([0.1, 1.0, 0.1], dtype=torch.float64)
    for solve in (steihaug, cauchy):
        proposal = solve(Quadratic(g, lambda v: hessian @ v), 5.0, tolerance=1e-12, limit=50)
        assert proposal.boundary
        assert float(torch.linalg.vector_norm(proposal.step)) == pytest.approx(5.0)
        assert proposal.drop > 0


def test_a_product_that_is_not_finite_ends_the_solve_with_what_there_is() -> None:
    g = gradient(5, 0)
    proposal = steihaug(Quadratic(g, lambda v: v * math.nan), 1.0, tolerance=0.0, limit=50)
    assert proposal.products == 1
    assert torch.equal(proposal.step, torch.zeros(5, dtype=torch.float64))

"""M bounds third derivatives and Hessian differences, and its constants and operator norms are right."""

import math

import pytest
import torch
from torch import Tensor
from torch.func import grad, jvp
from torch.nn import functional

from tests.unit.engine.certified_networks import CONVOLUTIONAL, DENSE, loss_of, network_problem
from worker.engine.networks import layers
from worker.engine.networks.architectures import Activation, AllCnn, Mlp, initial_point
from worker.engine.networks.lipschitz import hessian_lipschitz, product_rounding
from worker.engine.networks.losses import CrossEntropy
from worker.engine.networks.objective import NetworkObjective
from worker.engine.networks.smoothness import (
    ACTIVATION_BOUNDS,
    SOFTMAX_THIRD,
    convolution_bound,
    cubic_norm,
    loss_derivative_bounds,
)
from worker.engine.objective import Sampling
from worker.engine.rows import ArrayRows


@pytest.mark.parametrize("activation", ACTIVATION_BOUNDS)
def test_activations_bend_no_more_than_stated_and_nearly_as_much(activation: Activation) -> None:
    """On a grid of step 1/4000, between whose points each derivative changes by less than 5·2.5e-4/2."""
    at = torch.arange(-12, 12, 2.5e-4, dtype=torch.float64)
    derivative = lambda x: layers.value(activation, x)  # noqa: E731
    for stated in (
        ACTIVATION_BOUNDS[activation].first,
        ACTIVATION_BOUNDS[activation].second,
        ACTIVATION_BOUNDS[activation].third,
    ):
        derivative = _derivative(derivative)
        largest = float(derivative(at).abs().max())
        assert largest <= stated + 1e-12
        assert stated <= largest + 2e-3


def _derivative(f):
    return lambda x: jvp(f, (x,), (torch.ones_like(x),))[1]


def third_form(f, w: Tensor, u: Tensor) -> Tensor:
    """Return ∇³f(w)[u, u, ·]."""
    form: Tensor = jvp(lambda p: jvp(grad(f), (p,), (u,))[1], (w,), (u,))[1]
    return form


def steepest(f, w: Tensor, *, starts: int = 1, steps: int = 8, seed: int = 0) -> float:
    """Return the largest |∇³f[u, u, u]| that an ascent over unit u finds."""
    generator = torch.Generator().manual_seed(seed)
    best = 0.0
    for _ in range(starts):
        u = torch.randn(len(w), generator=generator, dtype=torch.float64)
        u /= u.norm()
        for _ in range(steps):
            bend = third_form(f, w, u)
            value = float(bend @ u)
            best = max(best, abs(value))
            u = math.copysign(1, value) * bend + abs(value) * u
            u /= u.norm()
    return best


def test_cross_entropy_bends_no_more_than_stated() -> None:
    """At the worst logits for the third derivative (two classes, p = (1 ± 1/√3)/2) and at random ones."""
    generator = torch.Generator().manual_seed(0)
    p = (1 + 1 / math.sqrt(3)) / 2
    worst = torch.tensor([math.log(p / (1 - p)), 0.0, -40.0, -40.0], dtype=torch.float64)
    loss = CrossEntropy(4)
    steepest_found = []
    for z in [worst, *(3 * torch.randn(3, 4, generator=generator, dtype=torch.float64))]:
        f = lambda v: torch.logsumexp(v, 0)  # noqa: E731
        bounds = loss_derivative_bounds(loss, loss.residual(z[None], torch.tensor([1])), torch.zeros(1))
        curvature = float(torch.linalg.matrix_norm(torch.func.hessian(f)(z), 2))
        steepest_found.append(steepest(f, z))
        assert curvature <= float(bounds.second)
        assert steepest_found[-1] <= float(bounds.third) <= SOFTMAX_THIRD
        assert float(bounds.first) <= math.sqrt(2) + 1e-8
    assert steepest_found[0] == pytest.approx(SOFTMAX_THIRD, abs=1e-4)


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("side", [3, 8])
def test_convolutions_stretch_no_more_than_stated(stride: int, side: int) -> None:
    generator = torch.Generator().manual_seed(side)
    taps = torch.randn(3, 2, 3, 3, generator=generator, dtype=torch.float64)
    unit = torch.eye(2 * side * side, dtype=torch.float64).view(-1, 2, side, side)
    dense = functional.conv2d(unit, taps, stride=stride, padding=1).flatten(1)
    norm, bound = float(torch.linalg.matrix_norm(dense, 2)), convolution_bound(taps, stride)
    assert norm <= bound
    assert side < 8 or bound <= 1.3 * norm


def test_cubic_forms_are_bounded_on_the_sphere() -> None:
    generator = torch.Generator().manual_seed(0)
    for depth in (1, 2, 4):
        form = torch.rand(depth, depth, depth, generator=generator, dtype=torch.float64)
        v = torch.randn(5000, depth, generator=generator, dtype=torch.float64)
        v /= v.norm(dim=1, keepdim=True)
        values = torch.einsum("ijk,ni,nj,nk->n", form, v, v, v)
        assert float(values.max()) <= cubic_norm(form) <= 1.6 * float(values.max())


@pytest.mark.parametrize(
    ("spec", "scale"),
    [*((spec, 1.0) for spec in (*DENSE, *CONVOLUTIONAL)), (DENSE[1], 4.0), (CONVOLUTIONAL[0], 4.0)],
)
def test_no_third_derivative_in_the_ball_exceeds_the_bound(spec: Mlp | AllCnn, scale: float) -> None:
    """Neither does a difference of Hessians, at w and at points on the edge of the ball."""
    objective = network_problem(spec, rows=12)
    f, w, radius = loss_of(objective), scale * initial_point(spec, 3), 0.05
    generator = torch.Generator().manual_seed(0)
    bound = hessian_lipschitz(objective, spec, w, radius)
    near = hessian_lipschitz(objective, spec, w, 0.0)
    assert near.value <= bound.value
    assert steepest(f, w) <= near.value
    for seed in (1,):
        offset = torch.randn(len(w), generator=generator, dtype=torch.float64)
        offset *= radius / offset.norm()
        assert steepest(f, w + offset, starts=1, seed=seed) <= bound.value
        v = offset / radius
        change = objective.hvp(w + offset, v) - objective.hvp(w, v)
        assert float(change.norm()) <= bound.value * radius


@pytest.mark.parametrize("spec", [DENSE[0], CONVOLUTIONAL[0]])
def test_the_bound_is_of_use(spec: Mlp | AllCnn) -> None:
    """The bound is within a factor of 1,000 of what a search finds, which B2 can afford."""
    objective = network_problem(spec, rows=12)
    w = initial_point(spec, 3)
    steepest_found = steepest(loss_of(objective), w, starts=1, steps=12)
    assert steepest_found <= hessian_lipschitz(objective, spec, w, 1e-9).value <= 1000 * steepest_found


def test_the_bound_is_reached_by_one_layer_and_one_row() -> None:
    """f‴ = ℓ‴[V·x + c, …], which is exactly √2/(3√3)·‖(x, 1)‖³ at the worst p."""
    spec = Mlp((2, 2))
    x, p = torch.tensor([[1.0, -2.0]], dtype=torch.float64), (1 + 1 / math.sqrt(3)) / 2
    objective = NetworkObjective(ArrayRows(x, torch.tensor([0])), spec, 0.1)
    w = torch.tensor([0.0, 0.0, 0.0, 0.0, math.log(p / (1 - p)), 0.0], dtype=torch.float64)
    exact = math.sqrt(2) / (3 * math.sqrt(3)) * math.sqrt(6) ** 3
    assert steepest(loss_of(objective), w, starts=4, steps=40) == pytest.approx(exact, rel=1e-6)
    assert exact <= hessian_lipschitz(objective, spec, w, 0.0).value <= 1.001 * exact


@pytest.mark.parametrize("activation", ["tanh", "gelu"])
def test_the_bound_is_nearly_reached_by_one_unit(activation: Activation) -> None:
    """z = v·φ(u·x + b) + c loses no norm between layers, so no term of the recursion can be missing."""
    spec = Mlp((1, 1, 1), activation)
    objective = NetworkObjective(
        ArrayRows(torch.tensor([[3.0]], dtype=torch.float64), torch.tensor([-9.0], dtype=torch.float64)),
        spec,
        0.1,
    )
    steepest_found, bound = 0.0, math.inf
    for bias in (-0.8, 0.0, 0.8):
        w = torch.tensor([0.1, bias - 0.3, 1.0, 0.0], dtype=torch.float64)
        steepest_found = max(steepest_found, steepest(loss_of(objective), w, starts=3, steps=30))
        bound = min(bound, hessian_lipschitz(objective, spec, w, 0.0).value)
    assert steepest_found <= bound <= 2.5 * steepest_found


def test_rows_add_up_whatever_the_chunks() -> None:
    spec = CONVOLUTIONAL[0]
    whole = network_problem(spec, rows=12)
    pieces = NetworkObjective(whole.rows, spec, whole.lam, whole.anchor, chunk_bytes=1)
    assert pieces.chunk_rows == 1
    w = initial_point(spec, 3)
    assert hessian_lipschitz(pieces, spec, w, 1e-3).value == pytest.approx(
        hessian_lipschitz(whole, spec, w, 1e-3).value, rel=1e-12
    )


@pytest.mark.parametrize("spec", [Mlp((30, 16, 16, 10)), AllCnn((2, 8, 8), 4, ((6, 2), (6, 1)))])
@pytest.mark.parametrize("scale", [0.3, 3.0])
def test_products_round_no_more_than_modelled(spec: Mlp | AllCnn, scale: float) -> None:
    """Checked in float32, with unit 2⁻²⁴, under the same model."""
    double = network_problem(spec, rows=200, scale=scale)
    ((x, y),) = double.rows.chunks(200)
    objective = NetworkObjective(ArrayRows(x.float(), y), spec, double.lam, double.anchor)
    w = (scale * initial_point(spec, 1)).float().double()
    modelled = product_rounding(objective, spec, w, hessian_lipschitz(objective, spec, w, 0.0), unit=2.0**-24)
    generator = torch.Generator().manual_seed(0)
    for _ in range(2):
        v = torch.randn(len(w), generator=generator, dtype=torch.float64)
        v = (v / v.norm()).float().double()
        single = objective.hessian(w, Sampling(rows=200)).product(v)
        error = float((single - objective.hessian(w).product(v)).norm())
        assert 0 < error <= modelled / 10

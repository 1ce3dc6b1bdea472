"""Curvature sketches: they match dense Hessians, they save passes, and no sketch can spoil a certificate."""

import math

import pytest
import torch
from torch import Tensor

from tests.unit.engine.linearised_problems import NETWORKS, nearby, problem
from tests.unit.engine.network_problems import TINY, dense
from tests.unit.engine.network_problems import nearby as near_network
from tests.unit.engine.network_problems import problem as network_problem
from worker.engine.families import Logistic, Ridge, Softmax
from worker.engine.linear import LinearObjective
from worker.engine.networks.architectures import Mlp, Spec, initial_point
from worker.engine.networks.objective import NetworkObjective
from worker.engine.rows import ArrayRows
from worker.engine.secants import SecantSteps
from worker.engine.sketch import (
    CurvatureSketch,
    RefinedSketch,
    SketchCancelled,
    build_sketch,
    outside_hessian,
)
from worker.engine.trust_region import Outcome, Solution, minimise, train

LAM, TARGET = 1e-3, 1e-3


def _rows(count: int, width: int, classes: int, seed: int = 0) -> ArrayRows:
    """Return rows of length 1 whose directions lose strength quickly, as real features do."""
    generator = torch.Generator().manual_seed(seed)
    strength = torch.arange(1, width + 1).pow(-1.0)
    x = torch.randn(count, width, generator=generator) * strength
    x /= x.norm(dim=1, keepdim=True)
    y = (4 * x @ torch.randn(width, classes, generator=generator)).argmax(1)
    return ArrayRows(x, y)


def _softmax(count: int = 6000, width: int = 40, seed: int = 0) -> Softmax:
    return Softmax(_rows(count, width, 5, seed), 5, LAM)


def _noised(objective: LinearObjective) -> Tensor:
    solution = train(objective, target=TARGET)
    noise = torch.randn(objective.dimension, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return solution.w + 4 * TARGET * noise


def _dense(objective: LinearObjective, w: Tensor) -> Tensor:
    eye = torch.eye(objective.dimension, dtype=torch.float64)
    return torch.stack([objective.hvp(w, v) for v in eye])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("family", ["softmax", "logistic", "ridge"])
def test_a_sketch_of_full_rank_inverts_the_dense_hessian(family: str, bias: bool) -> None:
    rows = _rows(600, 8, 2)
    objective = {
        "softmax": lambda: Softmax(rows, 2, LAM, bias=bias),
        "logistic": lambda: Logistic(rows, LAM, bias=bias),
        "ridge": lambda: Ridge(ArrayRows(*rows.sample(torch.arange(600))), LAM, bias=bias),
    }[family]()
    w = torch.randn(objective.dimension, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    sketch = build_sketch(objective, w, rank=objective.dimension)
    assert sketch is not None
    model = sketch.basis.double().T @ torch.diag(sketch.values.double()) @ sketch.basis.double()
    dense = _dense(objective, w) - LAM * torch.eye(objective.dimension)
    torch.testing.assert_close(model, dense, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("name", ["mlp-relu", "allcnn-relu", "staged"])
def test_a_sketch_of_a_linearised_network_is_its_dense_hessian(name: str) -> None:
    network, width = NETWORKS[name]
    objective = problem(network, width, n=6, chunk_bytes=1)
    w = nearby(objective)
    operator = objective.hessian(w)
    dense = torch.stack([operator.product(v) for v in torch.eye(objective.dimension, dtype=torch.float64)])
    sketch = build_sketch(objective, w, rank=objective.dimension)
    assert sketch is not None
    model = sketch.basis.double().T @ torch.diag(sketch.values.double()) @ sketch.basis.double()
    identity = torch.eye(objective.dimension, dtype=torch.float64)
    torch.testing.assert_close(model, dense - objective.lam * identity, atol=1e-4, rtol=1e-3)


def test_a_sketch_saves_a_linearised_network_passes_to_the_same_certificate() -> None:
    network, width = NETWORKS["mlp-relu"]
    objective = problem(network, width, n=200, lam=1e-2)
    trained = train(objective, target=1e-4)
    noise = torch.randn(objective.dimension, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    start = trained.w + 4e-4 * noise
    sketch = build_sketch(objective, start, rank=objective.dimension // 2)
    assert sketch is not None
    without = minimise(objective, start, target=1e-4)
    with_it = minimise(objective, start, target=1e-4, sketch=sketch)
    assert without.outcome is with_it.outcome is Outcome.CERTIFIED
    assert with_it.passes < without.passes / 2
    assert float((with_it.w - without.w).norm()) <= 2e-4


@pytest.mark.parametrize("plugin", [False, True])
@pytest.mark.parametrize("spec", [TINY[0], TINY[4], TINY[5]], ids=str)
def test_a_sketch_of_a_network_is_its_dense_gauss_newton_matrix(spec: Spec, plugin: bool) -> None:
    objective = network_problem(spec, plugin=plugin)
    w = near_network(objective)
    sketch = build_sketch(objective, w, rank=objective.dimension)
    assert sketch is not None
    model = sketch.basis.double().T @ torch.diag(sketch.values.double()) @ sketch.basis.double()
    matrix = dense(objective.gauss_newton(w).product, objective.dimension)
    torch.testing.assert_close(model, matrix, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("spoiled", [None, "random", "not finite", "of another model"])
def test_a_sketch_preconditions_a_network_and_a_wrong_one_ends_at_the_same_point(spoiled: str | None) -> None:
    generator, spec = torch.Generator().manual_seed(0), Mlp((30, 8, 4), "gelu")
    x = 3 * torch.randn(500, 30, generator=generator) * torch.arange(1, 31).pow(-0.7)
    rows = ArrayRows(x, (x @ torch.randn(30, 4, generator=generator)).argmax(1))
    objective = NetworkObjective(rows, spec, 0.02, initial_point(spec, 0))

    def solved(start: Tensor, target: float, sketch: CurvatureSketch | None) -> Solution:
        return minimise(objective, start, target=target, working_floor=0.005, sketch=sketch)

    noise = torch.randn(objective.dimension, generator=generator, dtype=torch.float64)
    start = solved(objective.anchor, 1e-3, None).w + 4e-3 * noise
    true = build_sketch(objective, start, rank=32)
    wrong = _spoiled(spoiled, objective.dimension) if spoiled else true
    without, with_it = solved(start, 1e-4, None), solved(start, 1e-4, wrong)
    assert without.outcome is with_it.outcome is Outcome.REACHED
    assert float((with_it.w - without.w).norm()) < 2e-4
    if spoiled is None:
        assert with_it.passes < 0.6 * without.passes


def test_building_a_sketch_of_a_network_stops_when_cancelled() -> None:
    objective = problem(*NETWORKS["mlp-relu"], n=20)
    smooth = network_problem(TINY[0])
    with pytest.raises(SketchCancelled):
        build_sketch(smooth, smooth.anchor, rank=4, cancelled=lambda: True)
    with pytest.raises(SketchCancelled):
        build_sketch(objective, objective.anchor, rank=4, cancelled=lambda: True)


def test_a_sketch_finds_the_leading_eigenpairs() -> None:
    objective = _softmax(2000)
    w = _noised(objective)
    sketch = build_sketch(objective, w, rank=60)
    assert sketch is not None
    exact = torch.linalg.eigvalsh(_dense(objective, w)).flip(0) - LAM
    torch.testing.assert_close(sketch.values[:20].double(), exact[:20], rtol=0.02, atol=1e-6)
    identity = torch.eye(len(sketch.values))
    torch.testing.assert_close(sketch.basis @ sketch.basis.T, identity, atol=1e-4, rtol=0)
    # Nyström's approximation is never larger than the matrix.
    assert bool((sketch.values.double() <= exact[: len(sketch.values)] * (1 + 1e-4) + 1e-8).all())


def test_its_inverse_is_that_of_the_dense_model() -> None:
    objective = _softmax(2000, 12)
    w = _noised(objective)
    sketch = build_sketch(objective, w, rank=20)
    assert sketch is not None
    basis, values = sketch.basis.double(), sketch.values.double()
    outside = torch.eye(objective.dimension) - basis.T @ basis
    dense = basis.T @ torch.diag(values + LAM) @ basis + (values[-1] + LAM) * outside
    g = torch.randn(objective.dimension, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    torch.testing.assert_close(sketch.solve(g, LAM), torch.linalg.solve(dense, g), rtol=1e-3, atol=1e-2)


def test_with_products_it_inverts_the_dense_model_whose_outside_is_the_hessian() -> None:
    objective = _softmax(2000, 12)
    w = _noised(objective)
    sketch = build_sketch(objective, w, rank=20)
    assert sketch is not None
    basis, values = sketch.basis.double(), sketch.values.double()
    outside = torch.eye(objective.dimension) - basis.T @ basis
    dense = basis.T @ torch.diag(values + LAM) @ basis + outside @ _dense(objective, w) @ outside
    g = torch.randn(objective.dimension, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    exact = torch.linalg.solve(dense, g)
    solved = sketch.solve(g, LAM, objective.hessian(w).product)
    assert float((solved - exact).norm() / exact.norm()) < 0.02
    assert float((sketch.solve(g, LAM) - exact).norm() / exact.norm()) > 0.05  # what the products correct


def test_many_rows_are_sampled_outside_the_sketch_and_the_step_gets_closer() -> None:
    many, few = _softmax(60_000), _softmax(6000)
    w = _noised(many)
    sketch = build_sketch(many, w, rank=64)
    assert sketch is not None
    operator = outside_hessian(many, w, seed=0)
    assert operator is not None
    g = many.gradient(w)
    plain, sampled = (sketch.solve(g, LAM, product) for product in (None, operator.product))
    assert float(many.gradient(w - sampled).norm()) < 0.7 * float(many.gradient(w - plain).norm())
    assert 3 * operator.fraction < 0.15, "linearising and two products cost little beside a gradient"
    assert outside_hessian(few, w, seed=0) is None
    network = problem(*NETWORKS["mlp-relu"], n=20)
    assert outside_hessian(network, network.anchor, seed=0) is None


def test_sampled_products_outside_a_sketch_are_counted_as_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    objective = _softmax(60_000)
    w = _noised(objective)
    sketch = build_sketch(objective, w, rank=64)
    solution = minimise(objective, w, target=TARGET, sketch=sketch)
    monkeypatch.setattr("worker.engine.trust_region.outside_hessian", lambda *_: None)
    plain = minimise(objective, w, target=TARGET, sketch=sketch)
    assert solution.outcome is plain.outcome is Outcome.CERTIFIED
    assert plain.passes == int(plain.passes)
    sampled = solution.passes - int(solution.passes)
    assert sampled == pytest.approx(round(sampled * 60_000 / 2048) * 2048 / 60_000)
    assert sampled > 0


def test_with_a_sketch_the_same_certificate_takes_fewer_passes() -> None:
    objective = _softmax()
    w = _noised(objective)
    sketch = build_sketch(objective, w, rank=64)
    without = minimise(_softmax(), w, target=TARGET)
    with_it = minimise(_softmax(), w, target=TARGET, sketch=sketch)
    assert without.outcome is with_it.outcome is Outcome.CERTIFIED
    assert with_it.passes < without.passes / 2
    here = _softmax().certified_gradient(with_it.w)
    assert (here.norm, here.rounding) == (with_it.gradient_norm, with_it.rounding)
    assert (here.norm + here.rounding) / LAM <= TARGET
    assert float((with_it.w - without.w).norm()) <= 2 * TARGET


def _spoiled(kind: str, dimension: int) -> CurvatureSketch:
    basis = torch.randn(20, dimension, generator=torch.Generator().manual_seed(7))
    values = torch.ones(20)
    if kind == "not finite":
        basis[3, 3] = math.nan
    if kind == "no curvature":
        values = torch.zeros(20)
    if kind == "far too short":
        values = torch.full((20,), 1e30)
    if kind == "of another model":
        basis = basis[:, 1:]
    return CurvatureSketch(basis, values)


@pytest.mark.parametrize(
    "kind", ["random", "not finite", "no curvature", "far too short", "of another model"]
)
def test_a_wrong_sketch_costs_two_passes_and_changes_no_certificate(kind: str) -> None:
    objective = _softmax()
    w = _noised(objective)
    plain = minimise(_softmax(), w, target=TARGET)
    spoiled = minimise(_softmax(), w, target=TARGET, sketch=_spoiled(kind, objective.dimension))
    assert spoiled.outcome is Outcome.CERTIFIED
    here = _softmax().certified_gradient(spoiled.w)
    assert (here.norm + here.rounding) / LAM <= TARGET
    assert spoiled.passes <= plain.passes + 4


def test_without_a_sketch_the_solve_takes_the_same_path_as_ever() -> None:
    objective = _softmax()
    w = _noised(objective)
    plain, none = (
        minimise(_softmax(), w, target=TARGET),
        minimise(_softmax(), w, target=TARGET, sketch=None),
    )
    assert torch.equal(plain.w, none.w)
    assert plain.passes == none.passes


def test_rows_that_carry_no_curvature_or_overflow_give_no_sketch() -> None:
    zeros = Softmax(ArrayRows(torch.zeros(50, 4), torch.zeros(50)), 3, LAM, bias=False)
    assert build_sketch(zeros, zeros.anchor, rank=4) is None
    huge = Ridge(ArrayRows(torch.full((50, 4), 1e30), torch.zeros(50)), LAM)
    assert build_sketch(huge, huge.anchor, rank=4) is None


def test_building_stops_when_it_is_cancelled() -> None:
    objective = _softmax(600)
    with pytest.raises(SketchCancelled):
        build_sketch(objective, objective.anchor, rank=16, cancelled=lambda: True)


def test_secant_steps_solve_a_quadratic_in_as_many_steps_as_gmres() -> None:
    values = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64).repeat_interleave(5)
    w = torch.ones(15, dtype=torch.float64)
    flat = CurvatureSketch(torch.zeros(1, 15), torch.ones(1))  # knows nothing: curvature 1 everywhere
    secants = SecantSteps(RefinedSketch(flat, lambda: None), 1.0)
    for _ in range(4):  # three distinct eigenvalues
        g = values * w
        step = secants.propose(g)
        secants.learn(step, values * step)
        w = w + step
    assert float((values * w).norm()) < 1e-5

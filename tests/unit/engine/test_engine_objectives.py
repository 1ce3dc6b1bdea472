"""Every closed form against automatic differentiation of the loss (float64, d ≤ 50)."""

import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from tests.unit.engine.engine_problems import FAMILIES, make_problem, random_point
from worker.engine import linear
from worker.engine.families import Softmax
from worker.engine.hessian import CachedHessian, StreamedHessian
from worker.engine.linear import LinearObjective
from worker.engine.objective import Evaluation, Sampling
from worker.engine.rows import ArrayRows


def written_out(objective: LinearObjective, family: str, w: Tensor) -> Tensor:
    """Return f(w) written out for automatic differentiation."""
    (x, y), *rest = objective.rows.chunks(objective.rows.count)
    assert not rest
    split = objective.outputs * objective.rows.width
    z = x.double() @ w[:split].view(objective.outputs, -1).T
    if objective.bias:
        z = z + w[split:]
    if family == "softmax":
        loss = torch.nn.functional.cross_entropy(z, y)
    elif family == "logistic":
        loss = torch.nn.functional.binary_cross_entropy_with_logits(z[:, 0], y.double())
    else:
        loss = (z[:, 0] - y).square().mean() / 2
    return loss + objective.lam / 2 * (w - objective.anchor).square().sum()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("bias", [True, False])
def test_value_gradient_and_products_match_their_dense_twins(family: str, bias: bool) -> None:
    objective = make_problem(family, bias=bias)
    w, v = random_point(objective), random_point(objective, seed=2)
    gradient = torch.autograd.functional.jacobian(lambda p: written_out(objective, family, p), w)
    hessian = torch.autograd.functional.hessian(lambda p: written_out(objective, family, p), w)
    value, ours = objective.value_and_gradient(w)
    assert value == pytest.approx(float(written_out(objective, family, w)), rel=1e-13)
    assert_close(ours, gradient, rtol=1e-12, atol=1e-13)
    assert_close(objective.gradient(w), gradient, rtol=1e-12, atol=1e-13)
    assert objective.value(w) == value
    assert_close(objective.hvp(w, v), hessian @ v, rtol=1e-11, atol=1e-13)
    assert_close(StreamedHessian(objective, w).product(v), hessian @ v, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_float32_sample_of_every_row_is_the_hessian_up_to_single_precision(family: str) -> None:
    objective = make_problem(family)
    w, v = random_point(objective), random_point(objective, seed=2)
    operator = objective.hessian(w, Sampling(rows=objective.rows.count))
    assert_close(operator.product(v), objective.hvp(w, v), rtol=1e-4, atol=1e-4)
    assert operator.fraction == 1.0


def test_a_sampled_hessian_is_unbiased_and_reproducible() -> None:
    objective = make_problem("softmax", n=300)
    w, v = random_point(objective), random_point(objective, seed=2)
    products = [objective.hessian(w, Sampling(60, seed)).product(v) for seed in range(400)]
    exact = objective.hvp(w, v)
    spread = torch.stack(products).std(0) / 20
    assert bool(((torch.stack(products).mean(0) - exact).abs() < 5 * spread + 1e-6).all())
    assert torch.equal(products[7], objective.hessian(w, Sampling(60, 7)).product(v))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_curvature_floor_is_below_the_smallest_eigenvalue(family: str) -> None:
    objective = make_problem(family, n=5, width=8)  # d > n: λ is attained
    w = random_point(objective)
    hessian = torch.autograd.functional.hessian(lambda p: written_out(objective, family, p), w)
    smallest = float(torch.linalg.eigvalsh(hessian)[0])
    assert objective.curvature_floor == objective.lam
    assert smallest == pytest.approx(objective.lam, rel=1e-9)


def test_the_anchor_pulls_on_every_parameter() -> None:
    base = make_problem("softmax", lam=0.5)
    anchor = random_point(base, seed=9)
    moved = Softmax(base.rows, 4, 0.5, anchor)
    w = random_point(base)
    assert_close(moved.gradient(w) - base.gradient(w), -0.5 * anchor)


def test_parameters_flatten_in_the_documented_order() -> None:
    objective = make_problem("softmax")
    w = torch.arange(objective.dimension, dtype=torch.float64)
    parts = objective.unflatten(w)
    assert parts["weight"].shape == (4, 6)
    assert parts["weight"][1, 0] == 6
    assert parts["bias"].tolist() == [24, 25, 26, 27]
    assert torch.equal(objective.flatten({name: part.float() for name, part in parts.items()}), w)
    assert torch.equal(objective.ungrouped(objective.grouped(w)), w)


def test_chunks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = make_problem("softmax", n=500)
    w = random_point(whole)
    monkeypatch.setattr(linear, "CHUNK_BYTES", 64 * 8 * 6)
    pieces = make_problem("softmax", n=500)
    assert len(list(pieces.chunks())) == 8
    assert_close(pieces.gradient(w), whole.gradient(w), rtol=1e-12, atol=1e-14)


def test_a_read_only_memory_map_is_streamed(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    features = rng.standard_normal((300, 5)).astype(np.float32)
    labels = rng.integers(0, 3, 300)
    np.save(tmp_path / "x.npy", features)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    ours, plain = Softmax(ArrayRows(mapped, labels), 3, 0.1), Softmax(ArrayRows(features, labels), 3, 0.1)
    w = random_point(plain)
    assert torch.equal(ours.gradient(w), plain.gradient(w))
    sampling = Sampling(50, 3)
    assert torch.equal(ours.hessian(w, sampling).product(w), plain.hessian(w, sampling).product(w))


def test_ranks_that_each_hold_some_rows_agree_with_one_that_holds_all() -> None:
    whole = make_problem("softmax", n=90)
    ((x, y),) = whole.rows.chunks(90)
    w, v = random_point(whole), random_point(whole, seed=2)
    barrier, slots = threading.Barrier(2), [torch.empty(0)] * 2
    results: dict[int, tuple[Evaluation, Tensor]] = {}

    def work(rank: int) -> None:
        def reduce(tensor: Tensor) -> Tensor:
            slots[rank] = tensor
            barrier.wait()
            total = slots[0] + slots[1]
            barrier.wait()
            return total

        mine = slice(0, 30) if rank == 0 else slice(30, 90)
        part = Softmax(ArrayRows(x[mine], y[mine]), 4, whole.lam, reduce=reduce)
        results[rank] = (part.evaluate(w), part.hvp(w, v))

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(results) == {0, 1}
    for evaluation, product in results.values():
        assert_close(evaluation.gradient, whole.gradient(w), rtol=1e-12, atol=1e-14)
        assert evaluation.value == pytest.approx(whole.value(w), rel=1e-13)
        assert_close(product, whole.hvp(w, v), rtol=1e-12, atol=1e-14)


def test_one_output_is_preconditioned_by_its_own_inverse() -> None:
    objective = make_problem("logistic", n=60)
    w, v = random_point(objective), random_point(objective, seed=2)
    ((x, _),) = objective.rows.chunks(60)
    operator = CachedHessian(objective, w, x)
    built = operator.approximate_inverse(rank=64)
    assert built is not None
    assert_close(built.apply(operator.product(v)), v, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("rank", [2, 64])
def test_the_preconditioner_is_symmetric_positive_definite(rank: int) -> None:
    objective = make_problem("softmax", n=200, width=10)
    operator = objective.hessian(random_point(objective), Sampling(150))
    built = operator.approximate_inverse(rank)
    assert built is not None
    columns = [built.apply(unit) for unit in torch.eye(objective.dimension, dtype=torch.float64)]
    dense = torch.stack(columns)
    assert_close(dense, dense.T, rtol=1e-3, atol=1e-3)
    assert float(torch.linalg.eigvalsh((dense + dense.T) / 2)[0]) > 0

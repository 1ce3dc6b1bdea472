"""Products over all rows: keeping linearised chunks changes their cost, not their values."""

import pytest
import torch
from torch.testing import assert_close

from tests.unit.engine.network_problems import TINY, dense, dense_hessian, nearby, problem
from worker.engine.networks import products
from worker.engine.networks.architectures import AllCnn, Spec
from worker.engine.objective import Sampling

SPECS = [TINY[0], TINY[5]]
DEEPER = AllCnn((2, 5, 4), 3, ((3, 2), (2, 1), (2, 2)), "silu")


@pytest.mark.parametrize("kept", [0, 2, 100])
@pytest.mark.parametrize("spec", SPECS, ids=["mlp", "allcnn"])
def test_chunks_that_are_kept_and_chunks_that_are_not_make_up_the_same_product(
    spec: Spec, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "KEPT_CHUNKS", kept)
    objective = problem(spec, chunk_bytes=1)
    w = nearby(objective)
    twin = dense_hessian(objective, w)
    assert_close(dense(objective.hessian(w).product, len(w)), twin, rtol=0, atol=1e-12)


@pytest.mark.parametrize("spec", SPECS, ids=["mlp", "allcnn"])
def test_smaller_chunks_halfway_lose_no_row(spec: Spec) -> None:
    objective = problem(spec)
    w = nearby(objective)
    operator, v = objective.split(w), torch.ones(objective.dimension, dtype=torch.float64)
    before = operator.product(v)
    objective.chunk_rows = 4
    for _ in range(2):
        assert_close(operator.product(v), before, rtol=0, atol=1e-13)


def test_a_product_cut_short_is_whole_the_next_time() -> None:
    objective = problem(TINY[5], chunk_bytes=1)
    w, v = nearby(objective), torch.ones(objective.dimension, dtype=torch.float64)
    expected = objective.hessian(w).product(v)
    calls = 0

    def failing(at: torch.Tensor, chunk: products.Chunk) -> products.Product:
        nonlocal calls
        calls += 1
        if calls == 5:
            raise MemoryError
        return objective.products.hessian(at, chunk)

    operator = products.StreamedOperator(objective, w, failing, objective.lam)
    with pytest.raises(MemoryError):
        operator.product(v)
    assert_close(operator.product(v), expected, rtol=0, atol=1e-14)


def test_convolutions_written_out_are_those_of_automatic_differentiation() -> None:
    by_hand, automatic = problem(DEEPER), problem(DEEPER, plugin=True)
    w = nearby(by_hand)
    for name in ("hessian", "split"):
        pair = [dense(getattr(objective, name)(w).product, len(w)) for objective in (by_hand, automatic)]
        assert_close(pair[0], pair[1], rtol=0, atol=1e-12)


def test_a_sample_weighs_its_rows_the_same_way() -> None:
    by_hand, automatic = problem(DEEPER, n=40), problem(DEEPER, n=40, plugin=True)
    w, v = nearby(by_hand), torch.ones(by_hand.dimension, dtype=torch.float64)
    pair = [objective.hessian(w, Sampling(rows=16, seed=3)).product(v) for objective in (by_hand, automatic)]
    assert_close(pair[0], pair[1], rtol=1e-4, atol=1e-4)

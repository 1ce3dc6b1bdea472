"""Objectives of a team: shards cover all rows, and chunks of rows shrink when memory runs out."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from worker.data.families import FamilyObjective
from worker.distributed.protocol import SoloConnection
from worker.distributed.rank0 import DistributedObjective
from worker.distributed.shard import Shard, span_of
from worker.engine.families import Softmax
from worker.engine.networks.architectures import Mlp, initial_point
from worker.engine.networks.objective import NetworkObjective
from worker.engine.rows import ArrayRows
from worker.errors import OutOfMemory


@pytest.mark.parametrize(("size", "rows"), [(1, 1), (3, 10), (7, 100), (4, 4)])
def test_spans_cover_all_rows_once_and_differ_by_at_most_one(size: int, rows: int) -> None:
    spans = [span_of(rank, size, rows) for rank in range(size)]
    assert [row for span in spans for row in span] == list(range(rows))
    assert max(map(len, spans)) - min(map(len, spans)) <= 1


class ScarceRows:
    """Rows of which memory holds at most `most` at once."""

    def __init__(self, rows: ArrayRows, most: int) -> None:
        self._rows, self.most = rows, most
        self.count, self.width, self.sample = rows.count, rows.width, rows.sample

    def chunks(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        for x, y in self._rows.chunks(size):
            if len(y) > self.most:
                raise torch.OutOfMemoryError("a fake one")
            yield x, y


def _distributed(kind: str, most: int) -> tuple[DistributedObjective, ScarceRows]:
    generator = np.random.default_rng(3)
    rows = ScarceRows(ArrayRows(generator.normal(size=(300, 4)), generator.integers(0, 3, 300)), most)
    spec = Mlp((4, 3, 3), "tanh")
    objective: FamilyObjective = (
        Softmax(rows, 3, 0.1)
        if kind == "softmax"
        else NetworkObjective(rows, spec, 0.1, initial_point(spec, seed=1))
    )
    connection = SoloConnection()
    shard = Shard(
        rows, objective, span=range(300), total=300, connection=connection, device=torch.device("cpu")
    )
    return DistributedObjective(shard, connection), rows


@pytest.mark.parametrize("kind", ["softmax", "mlp"])
def test_chunks_are_halved_until_they_fit_without_changing_the_result(kind: str) -> None:
    roomy, _ = _distributed(kind, 1000)
    short, rows = _distributed(kind, 1000)
    w = torch.linspace(-1, 1, roomy.dimension).double()
    wanted = roomy.evaluate(w)
    assert short.evaluate(w).rounding == wanted.rounding
    rows.most = 7  # set after a first pass: cached larger chunks must not be used
    found = short.evaluate(w)
    assert short.local.chunk_rows <= 7  # type: ignore[attr-defined]
    assert torch.allclose(found.gradient, wanted.gradient, rtol=1e-12)
    assert abs(found.norm - wanted.norm) <= found.rounding + wanted.rounding
    rows.most = 3
    if kind == "mlp":  # a network streams its rows; a convex model this small keeps them all
        assert torch.allclose(short.hvp(w, w), roomy.hvp(w, w), rtol=1e-12)


def test_if_not_even_one_row_fits_the_reason_names_memory() -> None:
    objective, _ = _distributed("softmax", 0)
    with pytest.raises(OutOfMemory, match="memory"):
        objective.evaluate(objective.anchor)


def test_other_errors_are_not_retried() -> None:
    objective, rows = _distributed("softmax", 1000)
    rows.chunks = lambda size: (_ for _ in ()).throw(RuntimeError("shapes do not match"))  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="shapes"):
        objective.evaluate(objective.anchor)

"""A rank's share of the rows, and what every rank does with it when an order comes."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from app.db.manifest import Manifest
from app.storage import Storage
from worker.devices import forget_cached
from worker.distributed.wire import Wire
from worker.engine.networks.architectures import AllCnn, Mlp
from worker.engine.networks.lipschitz import derivative_sums
from worker.engine.networks.objective import InputNorms, NetworkObjective
from worker.engine.objective import EXACT, Evaluation, HessianOperator, Sampling
from worker.engine.rows import ArrayRows
from worker.loading import datasets
from worker.loading.families import FamilyObjective, Place, family_of
from worker.problems import OutOfMemory

_FEWEST_ROWS = 1  # of a chunk: less there is not


def span_of(rank: int, size: int, rows: int) -> range:
    """Contiguous, so that a rank reads its own row groups alone; lengths differ by one at most.

    >>> [span_of(rank, 3, 10) for rank in range(3)]
    [range(0, 3), range(3, 6), range(6, 10)]
    """
    return range(rank * rows // size, (rank + 1) * rows // size)


class Share:
    """The objective on this rank's rows. Its sums are over all ranks, so all must be asked at once."""

    def __init__(
        self,
        storage: Storage,
        manifest: Manifest,
        paths: Sequence[str],
        anchor: Tensor | None,
        scratch: Path,
        *,
        wire: Wire,
        device: torch.device,
    ) -> None:
        self._wire, self._device, self.size = wire, device, wire.size
        self.total = sum(datasets.row_count(storage, path) for path in paths)
        self.span = span_of(wire.rank, wire.size, self.total)
        mapped = datasets.memory_map(storage, paths, manifest.width, scratch, span=self.span)
        self.rows = ArrayRows(mapped.features, mapped.labels)
        shutil.rmtree(scratch)  # the rows stay mapped, and are gone when this process is
        place = Place(device, wire.sum)
        self.objective: FamilyObjective = family_of(manifest).objective_at(manifest, self.rows, anchor, place)
        self._operator: HessianOperator | None = None
        self._point: Tensor | None = None

    @property
    def network(self) -> NetworkObjective:
        assert isinstance(self.objective, NetworkObjective)
        return self.objective

    def evaluate(self, w: Tensor, *, single: bool) -> Evaluation:
        return self.objective.evaluate(w.to(self._device), single=single)

    def linearise(self, kind: str, w: Tensor, rows: int | None, seed: int) -> HessianOperator:
        """The only operator that is kept; a sample of `rows` is made up of what each rank has of them."""
        self.forget()
        self._point = w = w.to(self._device, copy=True)
        if kind == "split":
            self._operator = self.network.split(w)
        elif kind == "gauss_newton":
            self._operator = self.network.gauss_newton(w)
        else:
            self._operator = self.objective.hessian(w, self._sampling(rows, seed))
        return self._operator

    def _sampling(self, rows: int | None, seed: int) -> Sampling:
        if rows is None:
            return EXACT
        return Sampling(max(1, -(-rows * len(self.span) // self.total)), seed)

    def product(self, v: Tensor) -> Tensor:
        assert self._operator is not None
        return self._operator.product(v.to(self._device))

    def measured_rounding(self, w: Tensor) -> float:
        return self.network.measured_rounding(w.to(self._device))

    def input_norms(self, moments: int) -> InputNorms:
        return self.network.input_norms(moments)

    def derivative_sums(self, w: Tensor, radius: float) -> Tensor:
        spec = self.network.spec
        assert isinstance(spec, Mlp | AllCnn)
        return derivative_sums(self.network, spec, w.to(self._device), radius)

    def rows_at(self, indices: Tensor) -> Tensor:
        """(k,) in the numbering of all ranks -> (k, width + 1), targets last; zero plus x is x."""
        found = torch.zeros(len(indices), self.rows.width + 1, dtype=torch.float64)
        mine = (indices >= self.span.start) & (indices < self.span.stop)
        if bool(mine.any()):
            features, targets = self.rows.sample(indices[mine] - self.span.start)
            found[mine] = torch.cat([features.double(), targets.double()[:, None]], 1)
        return self._wire.sum(found)

    def halve(self) -> None:
        """Smaller chunks of rows, on all ranks alike: the bound on rounding counts additions by them."""
        rows = getattr(self.objective, "chunk_rows", _FEWEST_ROWS)
        if rows <= _FEWEST_ROWS:
            raise OutOfMemory("memory does not hold a single row with its derivatives")
        forget_cached(self._device)
        self.objective.chunk_rows = max(_FEWEST_ROWS, rows // 2)  # type: ignore[attr-defined]

    def forget(self) -> None:
        """The last point was near un-noised weights: it is overwritten, not just let go."""
        if self._point is not None:
            self._point.zero_()
        self._operator = self._point = None

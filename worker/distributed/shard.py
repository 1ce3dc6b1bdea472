"""A rank's shard of the rows, and the operations that every rank carries out on it when ordered to."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from app.core.storage import Storage
from app.db.manifest import Manifest
from worker.data import datasets
from worker.data.families import FamilyObjective, Place, family_of
from worker.devices import release_cached_memory
from worker.distributed.protocol import Connection
from worker.engine.networks.architectures import AllCnn, Mlp
from worker.engine.networks.lipschitz import derivative_sums
from worker.engine.networks.objective import InputNorms, NetworkObjective
from worker.engine.objective import EXACT, Evaluation, HessianOperator, Sampling
from worker.engine.rows import ArrayRows, Rows
from worker.errors import OutOfMemory

_SMALLEST_CHUNK = 1  # rows


def span_of(rank: int, size: int, rows: int) -> range:
    """Return the rows of one rank. Spans are contiguous and differ in length by at most one row.

    Being contiguous, they let each rank read only its own row groups.

    >>> [span_of(rank, 3, 10) for rank in range(3)]
    [range(0, 3), range(3, 6), range(6, 10)]
    """
    return range(rank * rows // size, (rank + 1) * rows // size)


class Shard:
    """The objective on this rank's rows. Its sums run over all ranks, so all ranks must compute together."""

    def __init__(
        self,
        rows: Rows,
        objective: FamilyObjective,
        *,
        span: range,
        total: int,
        connection: Connection,
        device: torch.device,
    ) -> None:
        self.rows, self.objective, self.span, self.total, self.size = (
            rows,
            objective,
            span,
            total,
            connection.size,
        )
        self._connection, self._device = connection, device
        self._operator: HessianOperator | None = None
        self._point: Tensor | None = None

    @classmethod
    def open(
        cls,
        storage: Storage,
        manifest: Manifest,
        paths: Sequence[str],
        anchor: Tensor | None,
        scratch: Path,
        *,
        connection: Connection,
        device: torch.device,
        decoded: datasets.MemoryMapped | None = None,
    ) -> "Shard":
        """Map this rank's rows of these parts, unless they are decoded, and build the objective on them."""
        total = sum(datasets.row_count(storage, path) for path in paths)
        span = span_of(connection.rank, connection.size, total)
        mapped = decoded
        if mapped is None:
            mapped = datasets.memory_map(storage, paths, manifest.width, scratch, span=span)
            shutil.rmtree(scratch)  # the rows stay mapped, and are freed when this process ends
        rows = ArrayRows(mapped.features, mapped.labels)
        place = Place(device, connection.sum, scratch.parent)
        objective = family_of(manifest).objective_at(manifest, rows, anchor, place)
        return cls(rows, objective, span=span, total=total, connection=connection, device=device)

    @property
    def network(self) -> NetworkObjective:
        """The objective, which must be a network's."""
        assert isinstance(self.objective, NetworkObjective)
        return self.objective

    def evaluate(self, w: Tensor, *, single: bool) -> Evaluation:
        """Return value and gradient at `w` (d,), over all ranks."""
        return self.objective.evaluate(w.to(self._device), single=single)

    def linearise(self, kind: str, w: Tensor, rows: int | None, seed: int) -> HessianOperator:
        """Build the operator at `w` (d,) for later products. It replaces the previous one.

        A sample of `rows` rows is divided among the ranks in proportion to their spans.
        """
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
        """Multiply the current operator by `v` (d,), over all ranks."""
        assert self._operator is not None
        return self._operator.product(v.to(self._device))

    def measured_rounding(self, w: Tensor) -> float:
        """Measure the rounding error of a network's gradient at `w` (d,)."""
        return self.network.measured_rounding(w.to(self._device))

    def input_norms(self, moments: int) -> InputNorms:
        """Return moments of the norms of a network's inputs."""
        return self.network.input_norms(moments)

    def derivative_sums(self, w: Tensor, radius: float) -> Tensor:
        """Return the sums that bound a network's third derivative within `radius` of `w` (d,)."""
        spec = self.network.spec
        assert isinstance(spec, Mlp | AllCnn)
        return derivative_sums(self.network, spec, w.to(self._device), radius)

    def rows_at(self, indices: Tensor) -> Tensor:
        """Return rows by their index over all ranks: (k,) -> (k, width + 1), the target last.

        Each rank fills in its own rows and leaves the others zero, so that their sum is exact.
        """
        gathered = torch.zeros(len(indices), self.rows.width + 1, dtype=torch.float64)
        own = (indices >= self.span.start) & (indices < self.span.stop)
        if bool(own.any()):
            features, targets = self.rows.sample(indices[own] - self.span.start)
            gathered[own] = torch.cat([features.double(), targets.double()[:, None]], 1)
        return self._connection.sum(gathered)

    def halve_chunks(self) -> None:
        """Halve the chunks of rows. All ranks do so together, since the rounding bound depends on them."""
        rows = getattr(self.objective, "chunk_rows", _SMALLEST_CHUNK)
        if rows <= _SMALLEST_CHUNK:
            raise OutOfMemory(
                "there is not enough memory for a single row with its derivatives: "
                "use a machine or device with more memory"
            )
        release_cached_memory(self._device)
        self.objective.chunk_rows = max(_SMALLEST_CHUNK, rows // 2)  # type: ignore[attr-defined]

    def forget(self) -> None:
        """Overwrite the current point, which is close to weights without noise, and drop its operator."""
        if self._point is not None:
            self._point.zero_()
        self._operator = self._point = None

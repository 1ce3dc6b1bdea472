"""The team of ranks behind an attempt, and the objectives with which rank 0 computes on all of them.

Every pass of such an objective is an order to all ranks. The solver, the curvature search, registration and
the audits know nothing of ranks: they are given an objective. With one rank there are no orders, and only the
retries with smaller chunks remain.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from app.core import logging
from app.core.settings import Settings
from app.core.storage import Storage
from app.db.manifest import Manifest
from worker import devices
from worker.data.datasets import MemoryMapped, row_count
from worker.data.families import FamilyObjective, family_of
from worker.distributed.protocol import Connection, GroupConnection, SoloConnection, join
from worker.distributed.rendezvous import Rendezvous
from worker.distributed.shard import Shard
from worker.engine.hessian import PRECONDITIONER_ROWS, CachedHessian
from worker.engine.linear import LinearObjective
from worker.engine.networks.objective import InputNorms, NetworkObjective
from worker.engine.objective import (
    EXACT,
    ApproximateInverse,
    CertifiedGradient,
    Evaluation,
    HessianOperator,
    Sampling,
)
from worker.errors import OutOfMemory, RankLost

T = TypeVar("T")
log = logging.get_logger("ranks")


class Team:
    """The ranks of one attempt, led by this process. Connects to them when they are first needed."""

    def __init__(
        self, device: torch.device, size: int = 1, connect: Callable[[], Connection] = SoloConnection
    ) -> None:
        self.device, self.size = device, size
        self._connect = connect
        self._connection: Connection | None = None
        self._shard: Shard | None = None

    @classmethod
    def alone(cls, settings: Settings) -> "Team":
        """Return a team of this process alone, on the configured device."""
        return cls(devices.choose(settings.device))

    def objective(
        self,
        storage: Storage,
        manifest: Manifest,
        paths: Sequence[str],
        anchor: Tensor | None,
        scratch: Path,
        decoded: MemoryMapped | None = None,
    ) -> FamilyObjective:
        """Open the objective on all rows of `paths`, of which each rank reads its shard.

        `decoded` holds the same rows for a team of one rank, which then need not read them. The objective
        opened before is closed.
        """
        assert decoded is None or self.size == 1
        self.forget()
        rows = sum(row_count(storage, path) for path in paths)
        distributable = family_of(manifest).placed is not None
        connection = (
            self._connected() if self.size > 1 and distributable and rows >= self.size else SoloConnection()
        )
        text = manifest.model_dump_json(by_alias=True)
        connection.order("open", anchor, f"{text}\n{' '.join(paths)}", rows=rows)
        device = self.device if distributable else torch.device("cpu")
        self._shard = connection.together(
            lambda: Shard.open(
                storage,
                manifest,
                paths,
                anchor,
                scratch,
                connection=connection,
                device=device,
                decoded=decoded,
            )
        )
        objective = DistributedObjective(self._shard, connection)
        if isinstance(self._shard.objective, NetworkObjective):
            return DistributedNetwork(objective)
        return objective

    def forget(self) -> None:
        """Drop the rows and the last point on every rank."""
        if self._shard is not None:
            self._shard.forget()
            if self._shard.size > 1:
                self._connected().order("forget")
        self._shard = None

    def close(self) -> None:
        """Tell all ranks that the attempt has ended, and disconnect."""
        if self._connection is not None:
            with suppress(RankLost):  # there may be nobody left to tell
                self._connection.order("end")
            self._connection.close()
        self._connection = None

    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = self._connect()
        return self._connection


@contextmanager
def form_team(settings: Settings, place: Rendezvous | None) -> Iterator[Team]:
    """Form the team that this process leads, alone if there is no rendezvous, and close it at the end."""
    if place is None:
        team = Team.alone(settings)
    else:
        device = devices.choose(settings.device, local_rank=place.local_rank)
        devices.share_cores(place.local_ranks)

        def connect() -> GroupConnection:
            return join(place, device, settings.rank_timeout_seconds)

        team = Team(device, place.size, connect)
    try:
        yield team
    finally:
        team.close()


class DistributedObjective:
    """A convex objective over the rows of all ranks. It also sends the orders for every other kind."""

    def __init__(self, shard: Shard, connection: Connection) -> None:
        self.shard, self.connection = shard, connection
        self.local = shard.objective
        self.rows = DistributedRows(self)
        self.operators = 0  # how many were built; the ranks keep only the last one

    def do(
        self,
        name: str,
        call: Callable[[], T],
        vector: Tensor | None = None,
        before_retry: Callable[[], None] = lambda: None,
        **args: Any,
    ) -> T:
        """Send one order, and carry out this rank's share of it by `call`.

        If any rank runs out of memory, all halve their chunks of rows and try again.
        """
        while True:
            self.connection.order(name, vector, **args)
            try:
                return self.connection.together(call)
            except OutOfMemory:
                log.warning("out of memory, retrying with smaller chunks of rows")
                self.connection.order("halve")
                self.connection.together(self.shard.halve_chunks)
            before_retry()

    @property
    def dimension(self) -> int:
        """The number of parameters d."""
        return self.local.dimension

    @property
    def lam(self) -> float:
        """λ, the weight of the regulariser."""
        return self.local.lam

    @property
    def anchor(self) -> Tensor:
        """The anchor (d,)."""
        return self.local.anchor

    @property
    def curvature_floor(self) -> float:
        """A proven lower bound on the curvature; not positive if none is known."""
        return self.local.curvature_floor

    def flatten(self, parts: Mapping[str, Tensor]) -> Tensor:
        """Lay tensors out as one vector (d,)."""
        return self.local.flatten(parts)

    def unflatten(self, w: Tensor) -> dict[str, Tensor]:
        """Split a vector (d,) into named tensors."""
        return self.local.unflatten(w)

    def evaluate(self, w: Tensor, *, single: bool = False) -> Evaluation:
        """Return value, gradient and rounding bound at `w` (d,), over all rows."""
        return self.do("evaluate", lambda: self.shard.evaluate(w, single=single), w, single=single)

    def value(self, w: Tensor) -> float:
        """Return the objective at `w` (d,)."""
        return self.evaluate(w).value

    def gradient(self, w: Tensor) -> Tensor:
        """Return the gradient at `w` (d,)."""
        return self.evaluate(w).gradient

    def value_and_gradient(self, w: Tensor) -> tuple[float, Tensor]:
        """Return the objective and its gradient at `w` (d,)."""
        here = self.evaluate(w)
        return here.value, here.gradient

    def certified_gradient(self, w: Tensor) -> CertifiedGradient:
        """Return the norm of the gradient at `w` (d,), with a bound on its rounding error."""
        here = self.evaluate(w)
        return CertifiedGradient(norm=here.norm, rounding=here.rounding)

    def hessian(self, w: Tensor, sampling: Sampling = EXACT) -> HessianOperator:
        """Return the Hessian at `w` (d,) as an operator."""
        return DistributedOperator(self, "hessian", w, sampling)

    def hvp(self, w: Tensor, v: Tensor) -> Tensor:
        """Return the Hessian at `w` times `v`: (d,), (d,) -> (d,)."""
        return self.hessian(w).product(v)


class DistributedOperator:
    """A Hessian-like operator over the rows of all ranks.

    The ranks keep only the operator that was built last, so a product with an older one builds it again.
    """

    def __init__(
        self, objective: DistributedObjective, kind: str, w: Tensor, sampling: Sampling = EXACT
    ) -> None:
        self._objective, self._kind, self._w, self._sampling = objective, kind, w, sampling
        self._build()

    def _build(self) -> None:
        objective, sampling = self._objective, self._sampling
        self._local = objective.do(
            "linearise",
            lambda: objective.shard.linearise(self._kind, self._w, sampling.rows, sampling.seed),
            self._w,
            kind=self._kind,
            rows=sampling.rows,
            seed=sampling.seed,
        )
        objective.operators += 1
        self._number = objective.operators
        self.fraction = self._local.fraction

    def product(self, v: Tensor) -> Tensor:
        """Multiply by `v`: (d,) -> (d,)."""
        objective = self._objective
        if self._number != objective.operators:
            self._build()
        return objective.do("product", lambda: objective.shard.product(v), v, before_retry=self._build)

    def approximate_inverse(self, rank: int) -> ApproximateInverse | None:
        """Return a low-rank approximate inverse, or None if there is none for this operator.

        It is built from rows spread evenly over all ranks. The rows of rank 0 alone may all be of one class
        if the data is sorted.
        """
        local = self._objective.local
        if self._objective.connection.size == 1 or not isinstance(self._local, CachedHessian):
            return self._local.approximate_inverse(rank)
        assert isinstance(local, LinearObjective)
        rows = self._objective.rows
        stride = -(-rows.count // PRECONDITIONER_ROWS)
        features, _ = rows.sample(torch.arange(0, rows.count, stride))
        dtype = torch.float64 if self._sampling == EXACT else torch.float32
        here = copy(local)
        here.stand_alone()
        on_device = features.to(local.device, dtype)
        return CachedHessian(here, self._w, on_device, self._sampling.seed).approximate_inverse(rank)


class DistributedNetwork(NetworkObjective):
    """A network's objective over the rows of all ranks.

    Whatever needs no pass over rows, such as names and shapes, is rank 0's own. `reduce` is the identity,
    because a sum over `rows` here already covers all ranks.
    """

    def __init__(self, distributed: DistributedObjective) -> None:
        local = distributed.local
        assert isinstance(local, NetworkObjective)
        super().__init__(distributed.rows, local.module, local.lam, local.anchor, device=local.device)
        self.chunk_rows = local.chunk_rows
        self._distributed = distributed

    @property
    def distributed(self) -> DistributedObjective:
        """The objective that sends the orders."""
        return self._distributed

    def evaluate(self, w: Tensor, *, single: bool = False) -> Evaluation:
        """Return value, gradient and rounding bound at `w` (d,), over all rows."""
        return self._distributed.evaluate(w, single=single)

    def measured_rounding(self, w: Tensor) -> float:
        """Measure the rounding error of the gradient at `w` (d,), over all rows."""
        shard = self._distributed.shard
        return self._distributed.do("measured_rounding", lambda: shard.measured_rounding(w), w)

    def input_norms(self, moments: int = 6) -> InputNorms:
        """Return moments of the norms of the inputs, over all rows."""
        shard = self._distributed.shard
        return self._distributed.do("input_norms", lambda: shard.input_norms(moments), moments=moments)

    def derivative_sums(self, w: Tensor, radius: float) -> Tensor:
        """Return the sums that bound the third derivative within `radius` of `w` (d,), over all rows."""
        call = self._distributed.shard.derivative_sums
        return self._distributed.do("derivative_sums", lambda: call(w, radius), w, radius=radius)

    def hessian(self, w: Tensor, sampling: Sampling = EXACT) -> HessianOperator:
        """Return the Hessian at `w` (d,) as an operator."""
        return DistributedOperator(self._distributed, "hessian", w, sampling)

    def split(self, w: Tensor) -> HessianOperator:
        """Return S of ∇²f = GGN + S + λI at `w` (d,) as an operator."""
        return DistributedOperator(self._distributed, "split", w)

    def gauss_newton(self, w: Tensor) -> HessianOperator:
        """Return GGN of ∇²f = GGN + S + λI at `w` (d,) as an operator."""
        return DistributedOperator(self._distributed, "gauss_newton", w)


class DistributedRows:
    """The rows of all ranks as one sequence. Rows are sent to rank 0 when it samples them."""

    def __init__(self, distributed: DistributedObjective) -> None:
        self._distributed = distributed
        self.count, self.width = distributed.shard.total, distributed.shard.rows.width

    def sample(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return features and targets of these rows: (k,) -> (k, width), (k,)."""
        shard = self._distributed.shard
        rows = self._distributed.do("rows", lambda: shard.rows_at(indices), indices.double())
        return rows[:, :-1].contiguous(), rows[:, -1].contiguous()

    def chunks(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield all rows in chunks. Every row crosses the network, which is too slow for a solver's loop."""
        for start in range(0, self.count, size):
            yield self.sample(torch.arange(start, min(start + size, self.count)))


def ranks_of(objective: object) -> int:
    """Return how many ranks an objective's sums run over."""
    distributed = objective.distributed if isinstance(objective, DistributedNetwork) else objective
    return distributed.connection.size if isinstance(distributed, DistributedObjective) else 1

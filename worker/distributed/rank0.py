"""What rank 0 computes with: objectives whose every pass is an order to all ranks.

The solver, the search for curvature, registration and the audits do not know of ranks: they are given an
objective. With one rank there are no orders, and what is left is the care for memory.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from app import logs
from app.db.manifest import Manifest
from app.storage import Storage
from worker.distributed.shares import Share
from worker.distributed.wire import NoWire, Wire
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
from worker.loading.datasets import row_count
from worker.loading.families import FamilyObjective, family_of
from worker.problems import OutOfMemory, RankLost

T = TypeVar("T")
log = logs.get("ranks")


class Team:
    """The ranks of one attempt, led by this one; joined when they are first needed."""

    def __init__(self, device: torch.device, size: int = 1, join: Callable[[], Wire] = NoWire) -> None:
        self.device, self.size = device, size
        self._join = join
        self._wire: Wire | None = None
        self._share: Share | None = None

    def objective(
        self, storage: Storage, manifest: Manifest, paths: Sequence[str], anchor: Tensor | None, scratch: Path
    ) -> FamilyObjective:
        """On all rows of `paths`, of which each rank reads its part; what was opened before is closed."""
        self.forget()
        rows = sum(row_count(storage, path) for path in paths)
        shared = self.size > 1 and family_of(manifest).placed is not None and rows >= self.size
        wire = self._connected() if shared else NoWire()
        text = manifest.model_dump_json(by_alias=True)
        wire.order("open", anchor, f"{text}\n{' '.join(paths)}", rows=rows)
        device = self.device if family_of(manifest).placed is not None else torch.device("cpu")
        self._share = wire.together(
            lambda: Share(storage, manifest, paths, anchor, scratch, wire=wire, device=device)
        )
        led = Led(self._share, wire)
        return LedNetwork(led) if isinstance(self._share.objective, NetworkObjective) else led

    def forget(self) -> None:
        """No rank holds a point or rows any more."""
        if self._share is not None:
            self._share.forget()
            if self._share.size > 1:
                self._connected().order("forget")
        self._share = None

    def close(self) -> None:
        if self._wire is not None:
            with suppress(RankLost):  # there may be nobody left to tell
                self._wire.order("end")
            self._wire.close()
        self._wire = None

    def _connected(self) -> Wire:
        if self._wire is None:
            self._wire = self._join()
        return self._wire


class Led:
    """An objective of the convex kind, and the way in which every kind gives orders."""

    def __init__(self, share: Share, wire: Wire) -> None:
        self.share, self.wire = share, wire
        self.local = share.objective
        self.rows = SharedRows(self)
        self.operators = 0  # how many were made: the ranks keep the last one

    def do(
        self,
        name: str,
        call: Callable[[], T],
        vector: Tensor | None = None,
        before_again: Callable[[], None] = lambda: None,
        **args: Any,
    ) -> T:
        """One order; with smaller chunks again when any rank ran out of memory, as long as there are any."""
        while True:
            self.wire.order(name, vector, **args)
            try:
                return self.wire.together(call)
            except OutOfMemory:
                log.warning("out of memory, going on with smaller chunks of rows")
                self.wire.order("halve")
                self.wire.together(self.share.halve)
            before_again()

    @property
    def dimension(self) -> int:
        return self.local.dimension

    @property
    def anchor(self) -> Tensor:
        return self.local.anchor

    @property
    def curvature_floor(self) -> float:
        return self.local.curvature_floor

    def flatten(self, parts: Mapping[str, Tensor]) -> Tensor:
        return self.local.flatten(parts)

    def unflatten(self, w: Tensor) -> dict[str, Tensor]:
        return self.local.unflatten(w)

    def evaluate(self, w: Tensor, *, single: bool = False) -> Evaluation:
        return self.do("evaluate", lambda: self.share.evaluate(w, single=single), w, single=single)

    def value(self, w: Tensor) -> float:
        return self.evaluate(w).value

    def gradient(self, w: Tensor) -> Tensor:
        return self.evaluate(w).gradient

    def value_and_gradient(self, w: Tensor) -> tuple[float, Tensor]:
        found = self.evaluate(w)
        return found.value, found.gradient

    def certified_gradient(self, w: Tensor) -> CertifiedGradient:
        found = self.evaluate(w)
        return CertifiedGradient(norm=found.norm, rounding=found.rounding)

    def hessian(self, w: Tensor, sampling: Sampling = EXACT) -> HessianOperator:
        return LedOperator(self, "hessian", w, sampling)

    def hvp(self, w: Tensor, v: Tensor) -> Tensor:
        return self.hessian(w).product(v)


class LedOperator:
    """Made anew on all ranks should another have been made since."""

    def __init__(self, led: Led, kind: str, w: Tensor, sampling: Sampling = EXACT) -> None:
        self._led, self._kind, self._w, self._sampling = led, kind, w, sampling
        self._make()

    def _make(self) -> None:
        led, how = self._led, self._sampling
        self._local = led.do(
            "linearise",
            lambda: led.share.linearise(self._kind, self._w, how.rows, how.seed),
            self._w,
            kind=self._kind,
            rows=how.rows,
            seed=how.seed,
        )
        led.operators += 1
        self._number = led.operators
        self.fraction = self._local.fraction

    def product(self, v: Tensor) -> Tensor:  # (d,) -> (d,)
        if self._number != self._led.operators:
            self._make()
        return self._led.do("product", lambda: self._led.share.product(v), v, before_again=self._make)

    def approximate_inverse(self, rank: int) -> ApproximateInverse | None:
        """From rows of all ranks, evenly: those of this one may be of one kind, if they are sorted."""
        local = self._led.local
        if self._led.wire.size == 1 or not isinstance(self._local, CachedHessian):
            return self._local.approximate_inverse(rank)
        assert isinstance(local, LinearObjective)
        stride = -(-self._led.rows.count // PRECONDITIONER_ROWS)
        features, _ = self._led.rows.sample(torch.arange(0, self._led.rows.count, stride))
        dtype = torch.float64 if self._sampling == EXACT else torch.float32
        here = copy(local)
        here.stand_alone()
        on_device = features.to(local.device, dtype)
        return CachedHessian(here, self._w, on_device, self._sampling.seed).approximate_inverse(rank)


class LedNetwork(NetworkObjective):
    """The same for networks. What is no pass over rows, such as names and shapes, is rank 0's own.

    `reduce` is the identity: whoever sums over `rows` here has seen them all.
    """

    def __init__(self, led: Led) -> None:
        self.__dict__.update(vars(led.local))
        self._led = led
        self.rows = led.rows
        self._reduce = lambda tensor: tensor

    @property
    def led(self) -> Led:
        return self._led

    def evaluate(self, w: Tensor, *, single: bool = False) -> Evaluation:
        return self._led.evaluate(w, single=single)

    def measured_rounding(self, w: Tensor) -> float:
        return self._led.do("measured_rounding", lambda: self._led.share.measured_rounding(w), w)

    def input_norms(self, moments: int = 6) -> InputNorms:
        return self._led.do("input_norms", lambda: self._led.share.input_norms(moments), moments=moments)

    def derivative_sums(self, w: Tensor, radius: float) -> Tensor:
        """See `lipschitz.Spread`."""
        call = self._led.share.derivative_sums
        return self._led.do("derivative_sums", lambda: call(w, radius), w, radius=radius)

    def hessian(self, w: Tensor, sampling: Sampling = EXACT) -> HessianOperator:
        return LedOperator(self._led, "hessian", w, sampling)

    def split(self, w: Tensor) -> HessianOperator:
        return LedOperator(self._led, "split", w)

    def gauss_newton(self, w: Tensor) -> HessianOperator:
        return LedOperator(self._led, "gauss_newton", w)


class SharedRows:
    """The rows of all ranks as one: those that are asked for come here, for samples that steer."""

    def __init__(self, led: Led) -> None:
        self._led = led
        self.count, self.width = led.share.total, led.share.rows.width

    def sample(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        found = self._led.do("rows", lambda: self._led.share.rows_at(indices), indices.double())
        return found[:, :-1].contiguous(), found[:, -1].contiguous()

    def chunks(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Correct, and as slow as the wire: nothing that is done often may go this way."""
        for start in range(0, self.count, size):
            yield self.sample(torch.arange(start, min(start + size, self.count)))


def ranks_of(objective: object) -> int:
    """How many ranks an objective's sums are over."""
    led = objective.led if isinstance(objective, LedNetwork) else objective
    return led.wire.size if isinstance(led, Led) else 1

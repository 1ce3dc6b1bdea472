"""The streaming pass shared by losses of a linear predictor z = W·x + b.

Everything is kept class-major, z as (outputs, c), because Wᵀ-by-chunk products are then two to three times
faster in the usual BLAS than row-major ones with ten columns. A parameter vector is flat float64:
`weight` (outputs, width) row by row, then `bias` (outputs,) if there is one.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from worker.engine import validation
from worker.engine.hessian import CachedHessian, StreamedHessian
from worker.engine.objective import EXACT, CertifiedGradient, Evaluation, HessianOperator, Reduce, Sampling
from worker.engine.rounding import TINY, Link, RowErrors, gradient_rounding, logit_error
from worker.engine.rows import Rows

_CHUNK_BYTES = 12 * 2**20  # a chunk in float64 that stays in a last-level cache between its two products
_CACHE_BYTES = 64 * 2**20  # all rows are kept for exact products only below this


def _alone(tensor: Tensor) -> Tensor:
    return tensor


@dataclass(frozen=True, slots=True)
class _Sums:
    """What one pass accumulates; every field is a plain sum over rows, so ranks add up."""

    loss: float
    gradient: Tensor  # (d,)
    evaluation: float
    mass: float
    chunks: int


class LinearObjective(ABC):
    """f(w) = mean loss of W·x + b, plus (λ/2)‖w - anchor‖²; λ covers the bias too."""

    outputs: int
    link: Link

    def __init__(
        self,
        rows: Rows,
        lam: float,
        anchor: Tensor | None = None,
        *,
        outputs: int,
        bias: bool,
        reduce: Reduce = _alone,
        device: torch.device | str = "cpu",
    ) -> None:
        validation.check_rows(rows)
        validation.check_lambda(lam)
        self.rows = rows
        self.lam = float(lam)
        self.outputs = outputs
        self.bias = bias
        self.device = torch.device(device)
        self._reduce = reduce
        self.dimension = outputs * (rows.width + int(bias))
        self.anchor = validation.checked_point(anchor, self.dimension, "anchor").to(self.device)
        self._chunk_rows = max(64, min(8192, _CHUNK_BYTES // (8 * rows.width)))
        self._row_norms: list[float] = []  # the longest row of each chunk, filled by the first pass
        ones = torch.tensor([float(rows.count), 1.0], dtype=torch.float64, device=self.device)
        total = reduce(ones)
        self.total, self._ranks = int(total[0]), int(total[1])

    @property
    def chunk_rows(self) -> int:
        """How many rows are looked at together: the same on all ranks, the bound on rounding counts them."""
        return self._chunk_rows

    @chunk_rows.setter
    def chunk_rows(self, rows: int) -> None:
        self._chunk_rows = rows
        self._row_norms.clear()  # they were those of other chunks

    @property
    def curvature_floor(self) -> float:
        """λ: the loss is convex in w, so the quadratic's curvature is proven for the sum."""
        return self.lam

    # -- parameters ---------------------------------------------------------------------------------

    def unflatten(self, w: Tensor) -> dict[str, Tensor]:
        """(d,) -> weight (outputs, width) and, with a bias, bias (outputs,); views, not copies."""
        split = self.outputs * self.rows.width
        parts = {"weight": w[:split].view(self.outputs, self.rows.width)}
        return parts | {"bias": w[split:]} if self.bias else parts

    def flatten(self, parts: Mapping[str, Tensor]) -> Tensor:
        """The inverse of `unflatten`, in float64."""
        expected = {"weight", "bias"} if self.bias else {"weight"}
        if set(parts) != expected:
            raise validation.EngineInputError(f"expected {sorted(expected)}, got {sorted(parts)}")
        names = ("weight", "bias") if self.bias else ("weight",)
        flat = torch.cat([parts[name].to(self.device, torch.float64).reshape(-1) for name in names])
        return validation.checked_point(flat, self.dimension, "parameters")

    def logits(self, w: Tensor, x: Tensor) -> Tensor:
        """(d,), (c, width) -> (outputs, c), in the type of x."""
        parts = self.unflatten(w.to(x.dtype))
        z = parts["weight"] @ x.T
        return z.add_(parts["bias"][:, None]) if self.bias else z

    def pullback(self, q: Tensor, x: Tensor) -> Tensor:
        """Σ_i q_i ⊗ (x_i, 1): (outputs, c), (c, width) -> (d,), the transpose of `logits`."""
        weight = (q @ x).reshape(-1)
        return torch.cat([weight, q.sum(1)]) if self.bias else weight

    def extended(self, x: Tensor) -> Tensor:
        """(c, width) -> (c, width + 1) with the bias's constant feature, if there is a bias."""
        return torch.cat([x, x.new_ones(len(x), 1)], 1) if self.bias else x

    def grouped(self, w: Tensor) -> Tensor:
        """(d,) -> (outputs, width + 1): each output's weights and bias side by side."""
        parts = self.unflatten(w)
        return torch.cat([parts["weight"], parts["bias"][:, None]], 1) if self.bias else parts["weight"]

    def ungrouped(self, matrix: Tensor) -> Tensor:
        """The inverse of `grouped`."""
        if not self.bias:
            return matrix.reshape(-1)
        return torch.cat([matrix[:, :-1].reshape(-1), matrix[:, -1]])

    # -- what a family supplies ---------------------------------------------------------------------

    @abstractmethod
    def check_targets(self, y: Tensor, first: int) -> None:
        """Raise EngineInputError unless the targets (c,) of the chunk from row `first` are this family's."""

    @abstractmethod
    def residual(self, z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (outputs, c), targets (c,) -> summed loss (), residual q = ∂ℓ/∂z (outputs, c)."""

    @abstractmethod
    def curvature(self, z: Tensor) -> Tensor:
        """Logits -> whatever `curve` needs of them, (outputs, c)."""

    @abstractmethod
    def curve(self, state: Tensor, u: Tensor) -> Tensor:
        """(∂²ℓ/∂z²)·u row by row: (outputs, c), (outputs, c) -> (outputs, c)."""

    @abstractmethod
    def curve_diagonal(self, state: Tensor) -> Tensor:
        """The diagonal of ∂²ℓ/∂z²: (outputs, c)."""

    @abstractmethod
    def curve_mean(self, state: Tensor) -> Tensor:
        """∂²ℓ/∂z² averaged over rows: (outputs, outputs)."""

    # -- passes -------------------------------------------------------------------------------------

    def chunks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """All rows in float64 on the device; the tensors are valid until the next step."""
        for x, y in self.rows.chunks(self._chunk_rows):
            validation.check_type(x)
            yield x.to(self.device, torch.float64), y.to(self.device)

    def evaluate(self, w: Tensor, *, single: bool = False) -> Evaluation:
        """Value, gradient and the bound on its rounding in one pass: float64, or float32 without a bound."""
        sums = self._combine(self._pass(w, torch.float32 if single else torch.float64))
        offset = w - self.anchor
        gradient = sums.gradient / self.total + self.lam * offset
        norm = float(torch.linalg.vector_norm(gradient))
        rounding = gradient_rounding(
            evaluation=sums.evaluation,
            mass=sums.mass,
            # inside a chunk, across chunks, across ranks
            additions=self._chunk_rows + sums.chunks + self._ranks,
            total=self.total,
            pull=self.lam * _upper(float(torch.linalg.vector_norm(offset)), self.dimension),
            norm=norm,
            dimension=self.dimension,
        )
        value = sums.loss / self.total + self.lam / 2 * float(offset @ offset)
        if not (math.isfinite(norm) and math.isfinite(rounding)):
            norm = rounding = math.inf
        rounding = math.inf if single else rounding
        return Evaluation(value, gradient, norm, rounding, scale=sums.mass / self.total)

    def value(self, w: Tensor) -> float:
        return self.evaluate(w).value

    def gradient(self, w: Tensor) -> Tensor:
        return self.evaluate(w).gradient

    def value_and_gradient(self, w: Tensor) -> tuple[float, Tensor]:
        evaluation = self.evaluate(w)
        return evaluation.value, evaluation.gradient

    def certified_gradient(self, w: Tensor) -> CertifiedGradient:
        evaluation = self.evaluate(w)
        return CertifiedGradient(norm=evaluation.norm, rounding=evaluation.rounding)

    def hessian(self, w: Tensor, sampling: Sampling = EXACT) -> HessianOperator:
        if sampling.rows is not None:
            picks = _stratified(self.rows.count, sampling)
            features, _ = self.rows.sample(picks)
            return CachedHessian(self, w, features.to(self.device, torch.float32), sampling.seed)
        if self.rows.count * self.rows.width * 8 <= _CACHE_BYTES:
            return CachedHessian(self, w, torch.cat([x for x, _ in self.chunks()]))
        return StreamedHessian(self, w)

    def hvp(self, w: Tensor, v: Tensor) -> Tensor:
        return self.hessian(w).product(v)

    def reduce(self, tensor: Tensor) -> Tensor:
        """The sum over ranks."""
        return self._reduce(tensor)

    def stand_alone(self) -> None:
        """From now on without other ranks: for what is done with rows that were fetched from them."""
        self._reduce = _alone

    def _pass(self, w: Tensor, dtype: torch.dtype) -> _Sums:
        parts = self.unflatten(w)
        weight_norm = _upper(float(torch.linalg.vector_norm(parts["weight"], dim=1).max()), self.rows.width)
        bias = float(parts["bias"].abs().max()) if self.bias else 0.0
        errors, loss, count = RowErrors(self.link), 0.0, 0
        gradient = torch.zeros(self.dimension, dtype=torch.float64, device=self.device)
        for index, (source, targets) in enumerate(self.rows.chunks(self._chunk_rows)):
            row_norm = self._first_look(index, source, targets)
            x, y = source.to(self.device, dtype), targets.to(self.device)
            chunk_loss, q = self.residual(self.logits(w, x), y)
            gradient += self.pullback(q, x)
            loss += float(chunk_loss)
            errors.add(
                count=len(y),
                row_norm=math.hypot(row_norm, 1.0) if self.bias else row_norm,
                logit=logit_error(
                    width=self.rows.width, row_norm=row_norm, weight_norm=weight_norm, bias=bias
                ),
                residual_mass=float(torch.linalg.vector_norm(q, dim=0).sum()) + len(y) * _upper(0.0, len(q)),
            )
            count += 1
        return _Sums(loss, gradient, errors.evaluation, errors.mass, count)

    def _combine(self, local: _Sums) -> _Sums:
        """Over ranks, in one reduction."""
        scalars = [local.loss, local.evaluation, local.mass, float(local.chunks)]
        head = torch.tensor(scalars, dtype=torch.float64, device=self.device)
        flat = self._reduce(torch.cat([head, local.gradient]))
        loss, evaluation, mass, chunks = flat[:4].tolist()
        return _Sums(loss, flat[4:], evaluation, mass, int(chunks))

    def _first_look(self, index: int, x: Tensor, y: Tensor) -> float:
        """The longest row of a chunk; measured, and the chunk checked, the first time it comes by."""
        if index == len(self._row_norms):
            validation.check_type(x)
            norm = _upper(
                float(torch.linalg.vector_norm(x, dim=1, dtype=torch.float64).max()), self.rows.width
            )
            first = index * self._chunk_rows
            if not math.isfinite(norm):
                validation.check_features(x, first)
            self.check_targets(y, first)
            self._row_norms.append(norm)
        return self._row_norms[index]


def _upper(norm: float, entries: int) -> float:
    """A computed norm with room for the squares that underflowed."""
    return norm + TINY * math.sqrt(entries)


def _stratified(count: int, sampling: Sampling) -> Tensor:
    """One row from each of k equal stretches: sorted, O(k), and every row equally likely."""
    assert sampling.rows is not None
    generator = torch.Generator().manual_seed(sampling.seed)
    jitter = torch.rand(sampling.rows, generator=generator, dtype=torch.float64)
    places = (torch.arange(sampling.rows, dtype=torch.float64) + jitter) * (count / sampling.rows)
    return places.long().clamp_(max=count - 1)

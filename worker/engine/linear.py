"""The streaming pass shared by all losses of a linear predictor z = W·x + b.

Everything is class-major, z as (outputs, c), because Wᵀ-by-chunk products are then two to three times faster
in the usual BLAS than row-major ones with ten columns. A parameter vector is flat float64: `weight` (outputs,
width) row by row, then `bias` (outputs,) if there is one.
"""

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from worker.engine import validation
from worker.engine.hessian import CachedHessian, StreamedHessian
from worker.engine.objective import (
    EXACT,
    EvaluatedObjective,
    Evaluation,
    HessianOperator,
    Reduce,
    Sampling,
    no_reduction,
)
from worker.engine.rounding import TINY, Link, RowErrors, gradient_rounding, logit_error
from worker.engine.rows import Rows
from worker.engine.sampling import stratified_indices

CHUNK_BYTES = 4 * 2**20  # A float64 chunk stays in the cache of a core or two between its two products.
_CACHE_BYTES = 64 * 2**20  # Exact products keep all rows in memory up to this size.


@dataclass(frozen=True, slots=True)
class _Sums:
    """Sums accumulated over rows in one pass. Every field is a plain sum, so ranks can be added up."""

    loss: float
    gradient: Tensor  # (d,)
    evaluation: float
    mass: float
    chunks: int


class LinearObjective(EvaluatedObjective):
    """Base class of f(w) = mean loss of W·x + b, plus (λ/2)‖w - anchor‖². λ acts on the bias too.

    A family supplies the loss through the abstract methods. `reduce` sums a tensor over ranks.
    """

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
        reduce: Reduce = no_reduction,
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
        self._chunk_rows = max(64, min(8192, CHUNK_BYTES // (8 * rows.width)))
        self._row_norms: list[float] = []  # longest row of each chunk, filled by the first pass
        ones = torch.tensor([float(rows.count), 1.0], dtype=torch.float64, device=self.device)
        total = reduce(ones)
        self.total, self._ranks = int(total[0]), int(total[1])

    @property
    def chunk_rows(self) -> int:
        """Number of rows processed together. The rounding bound depends on it, so all ranks use the same."""
        return self._chunk_rows

    @chunk_rows.setter
    def chunk_rows(self, rows: int) -> None:
        self._chunk_rows = rows
        self._row_norms.clear()  # they belong to the old chunks

    @property
    def curvature_floor(self) -> float:
        """λ. The loss is convex in w, so f is λ-strongly convex everywhere."""
        return self.lam

    # -- parameters ---------------------------------------------------------------------------------

    def unflatten(self, w: Tensor) -> dict[str, Tensor]:
        """Split (d,) into weight (outputs, width) and, with a bias, bias (outputs,). Returns views."""
        split = self.outputs * self.rows.width
        parts = {"weight": w[:split].view(self.outputs, self.rows.width)}
        return parts | {"bias": w[split:]} if self.bias else parts

    def flatten(self, parts: Mapping[str, Tensor]) -> Tensor:
        """Join named parameters into one float64 vector (d,). The inverse of `unflatten`."""
        expected = {"weight", "bias"} if self.bias else {"weight"}
        if set(parts) != expected:
            raise validation.EngineInputError(f"expected {sorted(expected)}, got {sorted(parts)}")
        names = ("weight", "bias") if self.bias else ("weight",)
        flat = torch.cat([parts[name].to(self.device, torch.float64).reshape(-1) for name in names])
        return validation.checked_point(flat, self.dimension, "parameters")

    def logits(self, w: Tensor, x: Tensor) -> Tensor:
        """Return W·x + b in the dtype of x. (d,), (c, width) -> (outputs, c)"""
        parts = self.unflatten(w.to(x.dtype))
        z = parts["weight"] @ x.T
        return z.add_(parts["bias"][:, None]) if self.bias else z

    def pullback(self, q: Tensor, x: Tensor) -> Tensor:
        """Return Σ_i q_i ⊗ (x_i, 1), the transpose of `logits`. (outputs, c), (c, width) -> (d,)"""
        weight = (q @ x).reshape(-1)
        return torch.cat([weight, q.sum(1)]) if self.bias else weight

    def extended(self, x: Tensor) -> Tensor:
        """Append the constant feature of the bias, if there is a bias. (c, width) -> (c, width + 1)"""
        return torch.cat([x, x.new_ones(len(x), 1)], 1) if self.bias else x

    def grouped(self, w: Tensor) -> Tensor:
        """Put each output's weights and bias side by side. (d,) -> (outputs, width + 1)"""
        parts = self.unflatten(w)
        return torch.cat([parts["weight"], parts["bias"][:, None]], 1) if self.bias else parts["weight"]

    def ungrouped(self, matrix: Tensor) -> Tensor:
        """Undo `grouped`. (outputs, width + 1) -> (d,)"""
        if not self.bias:
            return matrix.reshape(-1)
        return torch.cat([matrix[:, :-1].reshape(-1), matrix[:, -1]])

    # -- supplied by each family ---------------------------------------------------------------------

    @abstractmethod
    def check_targets(self, y: Tensor, first: int) -> None:
        """Raise EngineInputError unless the family accepts the targets (c,).

        `first` is the index of the first row of the chunk.
        """

    @abstractmethod
    def residual(self, z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the summed loss and the residual q = ∂ℓ/∂z.

        (outputs, c), (c,) -> (), (outputs, c). May overwrite z.
        """

    @abstractmethod
    def curvature(self, z: Tensor) -> Tensor:
        """Return what the other `curve` methods need of the logits. (outputs, c) -> (outputs, c)"""

    @abstractmethod
    def curve(self, state: Tensor, u: Tensor) -> Tensor:
        """Return (∂²ℓ/∂z²)·u row by row. (outputs, c), (…, outputs, c) -> (…, outputs, c)"""

    @abstractmethod
    def curve_diagonal(self, state: Tensor) -> Tensor:
        """Return the diagonal of ∂²ℓ/∂z² for each row. (outputs, c) -> (outputs, c)"""

    @abstractmethod
    def curve_mean(self, state: Tensor) -> Tensor:
        """Return ∂²ℓ/∂z² averaged over rows. (outputs, c) -> (outputs, outputs)"""

    # -- passes -------------------------------------------------------------------------------------

    def chunks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield all rows in float64 on the device. The tensors are valid until the next iteration."""
        for x, y in self.rows.chunks(self._chunk_rows):
            validation.check_type(x)
            yield x.to(self.device, torch.float64), y.to(self.device)

    def evaluate(self, w: Tensor, *, single: bool = False) -> Evaluation:
        """Return value, gradient and the bound on its rounding from one pass over all rows.

        With `single` the pass runs in float32 and its rounding bound is infinite.
        """
        sums = self._combine(self._pass(w, torch.float32 if single else torch.float64))
        offset = w - self.anchor
        gradient = sums.gradient / self.total + self.lam * offset
        norm = float(torch.linalg.vector_norm(gradient))
        rounding = gradient_rounding(
            evaluation=sums.evaluation,
            mass=sums.mass,
            # within a chunk, across chunks, across ranks
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

    def hessian(self, w: Tensor, sampling: Sampling = EXACT) -> HessianOperator:
        """Return the Hessian operator at w: over a float32 sample of rows, or exact in float64.

        Exact products keep the rows in memory if they fit into 64 MB, and stream them otherwise.
        """
        if sampling.rows is not None:
            picks = stratified_indices(self.rows.count, sampling)
            features, _ = self.rows.sample(picks)
            return CachedHessian(self, w, features.to(self.device, torch.float32), sampling.seed)
        if self.rows.count * self.rows.width * 8 <= _CACHE_BYTES:
            return CachedHessian(self, w, torch.cat([x for x, _ in self.chunks()]))
        return StreamedHessian(self, w)

    def hvp(self, w: Tensor, v: Tensor) -> Tensor:
        """Return the exact product ∇²f(w)·v. (d,), (d,) -> (d,)"""
        return self.hessian(w).product(v)

    def reduce(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over ranks."""
        return self._reduce(tensor)

    def stand_alone(self) -> None:
        """Stop summing over ranks. Use this on a copy that works with rows gathered from all of them."""
        self._reduce = no_reduction

    def _pass(self, w: Tensor, dtype: torch.dtype) -> _Sums:
        parts = self.unflatten(w)
        weight_norm = _upper(float(torch.linalg.vector_norm(parts["weight"], dim=1).max()), self.rows.width)
        bias = float(parts["bias"].abs().max()) if self.bias else 0.0
        errors, loss, count = RowErrors(self.link), 0.0, 0
        gradient = torch.zeros(self.dimension, dtype=torch.float64, device=self.device)
        for index, (source, targets) in enumerate(self.rows.chunks(self._chunk_rows)):
            row_norm = self._check_chunk(index, source, targets)
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
                # ten times faster than `vector_norm` along the first axis
                residual_mass=float(q.square().sum(0).sqrt_().sum()) + len(y) * _upper(0.0, len(q)),
            )
            count += 1
        return _Sums(loss, gradient, errors.evaluation, errors.mass, count)

    def _combine(self, local: _Sums) -> _Sums:
        """Sum over ranks in a single reduction."""
        scalars = [local.loss, local.evaluation, local.mass, float(local.chunks)]
        head = torch.tensor(scalars, dtype=torch.float64, device=self.device)
        flat = self._reduce(torch.cat([head, local.gradient]))
        loss, evaluation, mass, chunks = flat[:4].tolist()
        return _Sums(loss, flat[4:], evaluation, mass, int(chunks))

    def _check_chunk(self, index: int, x: Tensor, y: Tensor) -> float:
        """Return the length of the longest row of a chunk.

        The first call for a chunk measures it and checks the rows.
        """
        if index == len(self._row_norms):
            validation.check_type(x)
            norm = _longest_row(x)
            first = index * self._chunk_rows
            if not math.isfinite(norm):
                validation.check_features(x, first)
            self.check_targets(y, first)
            self._row_norms.append(norm)
        return self._row_norms[index]


def _longest_row(x: Tensor) -> float:
    """Return an upper bound on the length of the longest row, or a number that is not finite. (c, width)

    Float32 rows are measured in float32, in half the time. A sum of `width` squares and its root are off by
    at most (width + 4)·2⁻²⁴ of the length, and squares that underflow hide at most √(width·2⁻¹²⁶).
    """
    width = x.shape[1]
    if x.dtype == torch.float32:
        norm = float(torch.linalg.vector_norm(x, dim=1).max())
        if math.isfinite(norm):
            return norm * (1 + (width + 4) * 2.0**-24) + math.sqrt(width) * 2.0**-63
    return _upper(float(torch.linalg.vector_norm(x, dim=1, dtype=torch.float64).max()), width)


def _upper(norm: float, entries: int) -> float:
    """Return a computed norm of `entries` numbers, plus what squares lost to underflow can hide."""
    return norm + TINY * math.sqrt(entries)

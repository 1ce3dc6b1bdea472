"""The objective of a network: f(w) = mean loss of its outputs, plus (λ/2)‖w - anchor‖².

Smooth, not convex.

Every pass streams over chunks, so memory is bounded by one chunk (or by a sample, whose size the caller
chooses) and a few vectors of length d. For an MLP or AllCNN the gradient comes from `explicit_pass`, whose
rounding error is bounded. For any other module it comes from automatic differentiation and the bound is
infinite. Such a model can be retrained, or get an estimate labelled heuristic from `measured_rounding`, but
never a certificate.
"""

import math
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value

from worker.engine import validation
from worker.engine.networks.architectures import AllCnn, AllCnnModule, Mlp, MlpModule, Spec, build, shapes_of
from worker.engine.networks.explicit_pass import ExplicitPass, PassSums
from worker.engine.networks.losses import Loss
from worker.engine.networks.products import ChunkProducts, SampledOperator, StreamedOperator
from worker.engine.networks.streaming import StreamedObjective, differentiated_row_bytes, loss_for
from worker.engine.objective import (
    EXACT,
    CertifiedGradient,
    Evaluation,
    HessianOperator,
    Reduce,
    Sampling,
    no_reduction,
)
from worker.engine.rounding import gradient_rounding
from worker.engine.rows import ArrayRows, Rows
from worker.engine.sampling import weighted_sample
from worker.engine.validation import EngineInputError

Network: TypeAlias = Spec | nn.Module

_CHUNK_BYTES = 24 * 2**20  # float64 memory of a chunk's rows and derivatives
_PROBE_ROWS = 4
_DEPTH = 8.0  # Errors pass through layers, so a row's gradient is less exact than that of a linear model.
_MEASURED_MARGIN = 16.0


@dataclass(frozen=True, slots=True)
class InputNorms:
    """Norms of all rows over all ranks, rounded up: the largest, and the means of ‖x‖, ‖x‖², …"""

    largest: float
    moments: tuple[float, ...]


def explicit_spec(module: nn.Module) -> Mlp | AllCnn | None:
    """Return the spec of a built-in MLP or AllCNN.

    A subclass may have another forward pass, so it has none.
    """
    if isinstance(module, MlpModule | AllCnnModule) and type(module) in (MlpModule, AllCnnModule):
        return module.spec
    return None


class NetworkObjective(StreamedObjective):
    """The objective of a network over rows.

    The loss is half the squared error for one output and cross-entropy otherwise.

    `measured` uses `measured_rounding` if no rounding bound is derived, at the cost of a second pass per
    evaluation. The end of a run is then an estimate, and `rounding_proven` is False. Subclasses that evaluate
    elsewhere, such as on several ranks, call this constructor with the module of an existing objective and
    override the passes.
    """

    def __init__(
        self,
        rows: Rows,
        network: Network,
        lam: float,
        anchor: Tensor | None = None,
        *,
        classes: int | None = None,
        chunk_bytes: int = _CHUNK_BYTES,
        reduce: Reduce = no_reduction,
        device: torch.device | str = "cpu",
        compiled: bool = False,
        measured: bool = False,
    ) -> None:
        validation.check_rows(rows)
        validation.check_lambda(lam)
        self.rows, self.lam, self.device = rows, float(lam), torch.device(device)
        self.module = (network if isinstance(network, nn.Module) else build(network)).to(self.device)
        self.spec = explicit_spec(self.module)
        if self.spec is not None and self.spec.activation == "relu":
            raise EngineInputError("a network with ReLU is not smooth; use it linearised")
        self.shapes = shapes_of(self.module)
        self.dimension = sum(math.prod(shape) for shape in self.shapes.values())
        self.anchor = validation.checked_point(anchor, self.dimension, "anchor").to(self.device)
        self.loss = self._loss_of(classes)
        self._explicit = ExplicitPass(self.spec, self.loss) if self.spec else None
        self._measured, self._reduce = measured, reduce
        self.chunk_rows = max(1, min(8192, rows.count, chunk_bytes // self._row_bytes()))
        self.products = ChunkProducts(self, compiled=compiled)
        self._scores: Tensor | None = None  # scores of the last pass, four bytes per row
        total = reduce(torch.tensor([float(rows.count), 1.0], dtype=torch.float64, device=self.device))
        self.total, self._ranks = int(total[0]), int(total[1])

    @property
    def curvature_floor(self) -> float:
        """0: nothing is proven about the curvature away from the point where it was measured."""
        return 0.0

    @property
    def rounding_proven(self) -> bool:
        """Whether `Evaluation.rounding` is a derived bound rather than an estimate or infinite."""
        return self._explicit is not None

    def logits(self, w: Tensor, x: Tensor) -> Tensor:
        """Return the outputs of the network. w and x must have the same dtype.

        (d,), (c, width) -> (c, outputs)
        """
        z: Tensor = functional_call(self.module, self.unflatten(w), (x,))
        return z

    # -- passes -------------------------------------------------------------------------------------

    def evaluate(self, w: Tensor, *, single: bool = False) -> Evaluation:
        """Return value, gradient and the bound on its rounding from one pass over all rows.

        With `single` the pass runs in float32 and its rounding bound is infinite.
        """
        sums, chunks = self._pass(w, torch.float32 if single else torch.float64)
        offset = w - self.anchor
        gradient = sums.gradient / self.total + self.lam * offset
        norm = float(torch.linalg.vector_norm(gradient))
        value = sums.loss / self.total + self.lam / 2 * float(offset @ offset)
        rounding = math.inf if single else self._rounding(w, sums, chunks, offset, gradient)
        if not math.isfinite(norm):
            norm = rounding = math.inf
        scale = _DEPTH * sums.mass / self.total
        return Evaluation(value, gradient, norm, rounding, scale=scale)

    def certified_gradient(self, w: Tensor) -> CertifiedGradient:
        """Return ‖∇f(w)‖ with a proven rounding bound, or an infinite one, even if `measured` is set."""
        evaluation = self.evaluate(w)
        rounding = evaluation.rounding if self.rounding_proven else math.inf
        return CertifiedGradient(norm=evaluation.norm, rounding=rounding)

    def measured_rounding(self, w: Tensor) -> float:
        """Estimate the rounding error of the gradient, for heuristic figures only. This is not a bound.

        The same pass in float32 is off by about as many units, each 2²⁹ times as large. A safety margin is
        added.
        """
        double, _ = self._pass(w, torch.float64)
        return self._measure(w, double)

    def input_norms(self, moments: int = 6) -> InputNorms:
        """Return the norms of the rows that a bound on derivatives needs, from one pass."""
        largest = 0.0
        powers = torch.zeros(moments, dtype=torch.float64, device=self.device)
        exponents = torch.arange(1, moments + 1, dtype=torch.float64, device=self.device)
        for x, _ in self.chunks():
            norms = torch.linalg.vector_norm(x, dim=1)
            largest = max(largest, float(norms.max()))
            powers += (norms[:, None] ** exponents).sum(0)
        means = self.reduce(powers) / self.total * (1 + 1e-9)
        return InputNorms(self._largest(largest) * (1 + 1e-9), tuple(means.tolist()))

    # -- products -----------------------------------------------------------------------------------

    def hessian(self, w: Tensor, sampling: Sampling = EXACT) -> HessianOperator:
        """Return the Hessian operator at w.

        Exact products stream all rows in float64. A sample is kept in memory in float32.
        """
        if sampling.rows is None:
            return StreamedOperator(self, w, self.products.hessian, self.lam)
        picks, weights = weighted_sample(self._scores, self.rows.count, sampling)
        x, y = self.rows.sample(picks)
        pieces = (torch.split(part.to(self.device), self.chunk_rows) for part in (x.float(), y, weights))
        return SampledOperator(self, w, zip(*pieces, strict=True), len(y))

    def hvp(self, w: Tensor, v: Tensor) -> Tensor:
        """Return the exact product ∇²f(w)·v. (d,), (d,) -> (d,)"""
        return self.hessian(w).product(v)

    def split(self, w: Tensor) -> HessianOperator:
        """Return the operator of S in ∇²f = GGN + S + λI at w, over all rows in float64."""
        return StreamedOperator(self, w, self.products.remainder, 0.0)

    def gauss_newton(self, w: Tensor) -> HessianOperator:
        """Return the operator of GGN in ∇²f = GGN + S + λI at w, over all rows in float64."""
        return StreamedOperator(self, w, self.products.gauss_newton, 0.0)

    def ggn_product(self, w: Tensor, v: Tensor) -> Tensor:
        """Return GGN(w)·v over all rows. (d,), (d,) -> (d,)"""
        return self.gauss_newton(w).product(v)

    # -- internals ----------------------------------------------------------------------------------

    def _pass(self, w: Tensor, dtype: torch.dtype) -> tuple[PassSums, int]:
        """Return the sums over all rows of all ranks, and the number of chunks."""
        typed = w.to(dtype)
        scores: list[Tensor] = []
        stack = self._explicit.stack(self.unflatten(typed)) if self._explicit else []
        flat = torch.zeros(self.dimension + 4, dtype=torch.float64, device=self.device)
        for x, y in self.chunks(dtype):
            chunk = self._explicit.sums(stack, x, y) if self._explicit else self._automatic(typed, x, y)
            flat[4:] += chunk.gradient
            flat[:4] += flat.new_tensor([chunk.loss, chunk.evaluation, chunk.mass, 1.0])
            if chunk.scores is not None:
                scores.append(chunk.scores.float().cpu())
        self._scores = torch.cat(scores) if scores else None
        flat = self._reduce(flat)
        loss, evaluation, mass, chunks = flat[:4].tolist()
        return PassSums(loss, flat[4:], evaluation, mass), int(chunks)

    def _automatic(self, w: Tensor, x: Tensor, y: Tensor) -> PassSums:
        """Differentiate one chunk automatically. Its mass is extrapolated from a few rows."""
        slope = grad_and_value(lambda at, x, y: self.loss.each(self.logits(at, x), y).sum())
        gradient, loss = slope(w, x, y)
        few = min(_PROBE_ROWS, len(y))
        lengths = [float(slope(w, x[i : i + 1], y[i : i + 1])[0].norm()) for i in range(few)]
        return PassSums(float(loss), gradient.double(), math.inf, sum(lengths) / few * len(y))

    def _rounding(self, w: Tensor, sums: PassSums, chunks: int, offset: Tensor, gradient: Tensor) -> float:
        if self._explicit is None:
            return self._measure(w, sums) if self._measured else math.inf
        bound = gradient_rounding(
            evaluation=sums.evaluation,
            mass=sums.mass,
            # within a chunk (one row more on some ranks), across chunks, across ranks
            additions=(self.chunk_rows + 1) * self._explicit.positions + chunks + self._ranks,
            total=self.total,
            pull=self.lam * float(torch.linalg.vector_norm(offset)),
            norm=float(torch.linalg.vector_norm(gradient)),
            dimension=self.dimension,
        )
        return bound if math.isfinite(bound) else math.inf

    def _measure(self, w: Tensor, double: PassSums) -> float:
        single, _ = self._pass(w, torch.float32)
        off = float(torch.linalg.vector_norm(single.gradient - double.gradient)) / self.total
        return _MEASURED_MARGIN * 2.0**-29 * off if math.isfinite(off) else math.inf

    def _largest(self, local: float) -> float:
        """Return a slight upper bound on the maximum over ranks, from sums: (Σ m⁶⁴)^(1/64)."""
        total = float(self.reduce(torch.tensor(local, dtype=torch.float64, device=self.device)))
        if self._ranks == 1 or not 0 < total < math.inf:
            return total
        share = torch.tensor(local / total, dtype=torch.float64, device=self.device)
        return total * math.pow(float(self.reduce(share**64)), 1 / 64)

    def _loss_of(self, classes: int | None) -> Loss:
        if self.spec is not None and self.spec.inputs != self.rows.width:
            raise EngineInputError(
                f"the network takes {self.spec.inputs} features, rows have {self.rows.width}"
            )
        row = torch.zeros(1, self.rows.width, dtype=torch.float64, device=self.device)
        outputs = self.logits(self.anchor, row).shape[1]
        return loss_for(outputs, classes)

    def _row_bytes(self) -> int:
        """Return the float64 memory of one more row and of what differentiating twice keeps of it."""
        leaf = self.anchor.detach().clone().requires_grad_()
        own = differentiated_row_bytes(self.rows.width, lambda x: self.logits(leaf, x).sum(), self.device)
        return max(own, self._explicit.row_bytes if self._explicit else 0)


def subsample(
    objective: NetworkObjective, network: Network, rows: int, *, alone: bool = False
) -> NetworkObjective:
    """Return the same objective on at most `rows` rows, spread evenly along the data.

    With `alone` it does not sum over ranks.
    """
    count = min(rows, objective.rows.count)
    indices = torch.arange(count) * objective.rows.count // count
    features, targets = objective.rows.sample(indices)
    return NetworkObjective(
        ArrayRows(features, targets),
        network,
        objective.lam,
        objective.anchor,
        reduce=no_reduction if alone else objective.reduce,
        device=objective.device,
    )

"""f(w) = mean loss of a network's outputs, plus (λ/2)‖w - anchor‖²: smooth, not convex.

Every pass streams over chunks, so memory is bounded by a chunk (or by a sample, which the caller sizes) and
by a few vectors of length d. For MLP and AllCNN the gradient is `layered`'s explicit pass, whose rounding is
bounded; for every other module it is automatic differentiation and the bound is infinite: such a model can
be retrained, or get an estimate labelled heuristic from `measured_rounding`, never a certificate.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value

from worker.engine import validation
from worker.engine.linear import _alone
from worker.engine.networks.architectures import AllCnn, AllCnnModule, Mlp, MlpModule, Spec, build, shapes_of
from worker.engine.networks.drawing import weighted_sample
from worker.engine.networks.layered import Layered, PassSums
from worker.engine.networks.losses import CrossEntropy, HalfSquared, Loss
from worker.engine.networks.products import ChunkProducts, SampledOperator, StreamedOperator
from worker.engine.objective import EXACT, CertifiedGradient, Evaluation, HessianOperator, Reduce, Sampling
from worker.engine.rounding import gradient_rounding
from worker.engine.rows import Rows
from worker.engine.validation import EngineInputError

Network: TypeAlias = Spec | nn.Module

_CHUNK_BYTES = 24 * 2**20  # what one chunk's rows and derivatives may take, in float64
_PROBE_ROWS = 4
_DEPTH = 8.0  # errors pass through layers: a row's gradient is less exact than a linear one's
_MEASURED_MARGIN = 16.0


@dataclass(frozen=True, slots=True)
class InputNorms:
    """Of all rows over all ranks, rounded up: the longest, and the means of ‖x‖, ‖x‖², …"""

    largest: float
    moments: tuple[float, ...]


def _layered_spec(module: nn.Module) -> Mlp | AllCnn | None:
    """The spec of a module known layer by layer; none of a subclass, whose forward may be another."""
    if isinstance(module, MlpModule | AllCnnModule) and type(module) in (MlpModule, AllCnnModule):
        return module.spec
    return None


class NetworkObjective:
    """See the module. A network of one output gets half the squared error, any other cross-entropy.

    `measured`: use `measured_rounding` where no bound is derived, at the price of a second pass each time;
    what ends a run is then an estimate, and `rounding_proven` says so.
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
        reduce: Reduce = _alone,
        device: torch.device | str = "cpu",
        compiled: bool = False,
        measured: bool = False,
    ) -> None:
        validation.check_rows(rows)
        validation.check_lambda(lam)
        self.rows, self.lam, self.device = rows, float(lam), torch.device(device)
        self.module = (network if isinstance(network, nn.Module) else build(network)).to(self.device)
        self.spec = _layered_spec(self.module)
        self.shapes = shapes_of(self.module)
        self.dimension = sum(math.prod(shape) for shape in self.shapes.values())
        self.anchor = validation.checked_point(anchor, self.dimension, "anchor").to(self.device)
        self.loss: Loss = self._loss_of(classes)
        self._layered = Layered(self.spec, self.loss) if self.spec else None
        self._measured, self._reduce = measured, reduce
        self.chunk_rows = max(1, min(8192, rows.count, chunk_bytes // self._row_bytes()))
        self.products = ChunkProducts(self, compiled=compiled)
        self._checked = 0  # chunks whose rows have been looked at
        self._scores: Tensor | None = None  # of the last pass: four bytes for each row
        total = reduce(torch.tensor([float(rows.count), 1.0], dtype=torch.float64, device=self.device))
        self.total, self._ranks = int(total[0]), int(total[1])

    @property
    def curvature_floor(self) -> float:
        """0: nothing is proven of a network's curvature away from the point where it was measured."""
        return 0.0

    @property
    def rounding_proven(self) -> bool:
        """Whether `Evaluation.rounding` is a derived bound, not an estimate or infinite."""
        return self._layered is not None

    # -- parameters ---------------------------------------------------------------------------------

    def unflatten(self, w: Tensor) -> dict[str, Tensor]:
        """(d,) -> parameters by name; views, not copies."""
        pieces = torch.split(w, [math.prod(shape) for shape in self.shapes.values()])
        return {
            name: piece.view(shape) for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)
        }

    def flatten(self, parts: Mapping[str, Tensor]) -> Tensor:
        """The inverse of `unflatten`, in float64."""
        if set(parts) != set(self.shapes):
            raise EngineInputError(f"expected {sorted(self.shapes)}, got {sorted(parts)}")
        for name, shape in self.shapes.items():
            if tuple(parts[name].shape) != shape:
                raise EngineInputError(f"{name} must have shape {shape}, got {tuple(parts[name].shape)}")
        flat = torch.cat([parts[name].to(self.device, torch.float64).reshape(-1) for name in self.shapes])
        return validation.checked_point(flat, self.dimension, "parameters")

    def logits(self, w: Tensor, x: Tensor) -> Tensor:
        """(d,), (c, width) of one type -> (c, outputs)."""
        z: Tensor = functional_call(self.module, self.unflatten(w), (x,))
        return z

    # -- passes -------------------------------------------------------------------------------------

    def chunks(self, dtype: torch.dtype = torch.float64, *, skip: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """All rows on the device, but for the first `skip` chunks; checked the first time they come by."""
        for index, (source, targets) in enumerate(self.rows.chunks(self.chunk_rows)):
            if index == self._checked:
                validation.check_type(source)
                validation.check_features(source, index * self.chunk_rows)
                self.loss.check(targets, index * self.chunk_rows)
                self._checked += 1
            if index >= skip:
                yield source.to(self.device, dtype), targets.to(self.device)

    def evaluate(self, w: Tensor, *, single: bool = False) -> Evaluation:
        """Value, gradient and the bound on its rounding in one pass: float64, or float32 without a bound."""
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

    def value(self, w: Tensor) -> float:
        return self.evaluate(w).value

    def gradient(self, w: Tensor) -> Tensor:
        return self.evaluate(w).gradient

    def value_and_gradient(self, w: Tensor) -> tuple[float, Tensor]:
        evaluation = self.evaluate(w)
        return evaluation.value, evaluation.gradient

    def certified_gradient(self, w: Tensor) -> CertifiedGradient:
        """The rounding is a proven bound, or infinite, whatever `measured` says."""
        evaluation = self.evaluate(w)
        rounding = evaluation.rounding if self.rounding_proven else math.inf
        return CertifiedGradient(norm=evaluation.norm, rounding=rounding)

    def measured_rounding(self, w: Tensor) -> float:
        """An estimate of the gradient's rounding error, for heuristic figures only: no bound.

        The same pass in float32 is off by as many units, each 2²⁹ times as large; and a margin.
        """
        double, _ = self._pass(w, torch.float64)
        return self._measure(w, double)

    def input_norms(self, moments: int = 6) -> InputNorms:
        """Norms of the rows as a bound on a network's derivatives needs them: one pass."""
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
        """Exact: all rows, streamed, float64. Sampled: rows held in memory, float32."""
        if sampling.rows is None:
            return StreamedOperator(self, w, self.products.hessian, self.lam)
        picks, weights = weighted_sample(self._scores, self.rows.count, sampling)
        x, y = self.rows.sample(picks)
        pieces = (torch.split(part.to(self.device), self.chunk_rows) for part in (x.float(), y, weights))
        return SampledOperator(self, w, zip(*pieces, strict=True), len(y))

    def hvp(self, w: Tensor, v: Tensor) -> Tensor:
        return self.hessian(w).product(v)

    def split(self, w: Tensor) -> HessianOperator:
        """S of ∇²f = GGN + S + λI at w: all rows, float64."""
        return StreamedOperator(self, w, self.products.remainder, 0.0)

    def gauss_newton(self, w: Tensor) -> HessianOperator:
        """GGN of ∇²f = GGN + S + λI at w: all rows, float64."""
        return StreamedOperator(self, w, self.products.gauss_newton, 0.0)

    def ggn_product(self, w: Tensor, v: Tensor) -> Tensor:  # (d,), (d,) -> (d,)
        return self.gauss_newton(w).product(v)

    def reduce(self, tensor: Tensor) -> Tensor:
        """The sum over ranks."""
        return self._reduce(tensor)

    # -- inside -------------------------------------------------------------------------------------

    def _pass(self, w: Tensor, dtype: torch.dtype) -> tuple[PassSums, int]:
        """Sums over all rows of all ranks, and the number of chunks."""
        typed = w.to(dtype)
        seen: list[Tensor] = []
        stack = self._layered.stack(self.unflatten(typed)) if self._layered else []
        flat = torch.zeros(self.dimension + 4, dtype=torch.float64, device=self.device)
        for x, y in self.chunks(dtype):
            found = self._layered.sums(stack, x, y) if self._layered else self._automatic(typed, x, y)
            flat[4:] += found.gradient
            flat[:4] += flat.new_tensor([found.loss, found.evaluation, found.mass, 1.0])
            if found.scores is not None:
                seen.append(found.scores.float().cpu())
        self._scores = torch.cat(seen) if seen else None
        flat = self._reduce(flat)
        loss, evaluation, mass, chunks = flat[:4].tolist()
        return PassSums(loss, flat[4:], evaluation, mass), int(chunks)

    def _automatic(self, w: Tensor, x: Tensor, y: Tensor) -> PassSums:
        """One chunk by automatic differentiation; its mass is that of a few rows, scaled up."""
        slope = grad_and_value(lambda at, x, y: self.loss.each(self.logits(at, x), y).sum())
        gradient, loss = slope(w, x, y)
        few = min(_PROBE_ROWS, len(y))
        lengths = [float(slope(w, x[i : i + 1], y[i : i + 1])[0].norm()) for i in range(few)]
        return PassSums(float(loss), gradient.double(), math.inf, sum(lengths) / few * len(y))

    def _rounding(self, w: Tensor, sums: PassSums, chunks: int, offset: Tensor, gradient: Tensor) -> float:
        if self._layered is None:
            return self._measure(w, sums) if self._measured else math.inf
        bound = gradient_rounding(
            evaluation=sums.evaluation,
            mass=sums.mass,
            # inside a chunk (another rank's may have a row more), across chunks, across ranks
            additions=(self.chunk_rows + 1) * self._layered.positions + chunks + self._ranks,
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
        """At least the maximum over ranks, and hardly more, from sums: (Σ m⁶⁴)^(1/64)."""
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
        if classes is not None and classes != outputs:
            raise EngineInputError(f"the network has {outputs} outputs, not {classes}")
        return HalfSquared() if outputs == 1 else CrossEntropy(outputs)

    def _row_bytes(self) -> int:
        """What one more row costs in float64: itself, and what differentiating twice keeps of it."""
        kept = [0, 0]

        def count(tensor: Tensor) -> Tensor:
            kept[-1] += tensor.numel()
            return tensor

        leaf = self.anchor.detach().clone().requires_grad_()
        for rows in (1, 2):
            x = torch.zeros(rows, self.rows.width, dtype=torch.float64, device=self.device)
            kept.append(0)
            with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
                self.logits(leaf, x).sum()
        own = 8 * (4 * self.rows.width + 2 * max(1, kept[-1] - kept[-2]))
        return max(own, self._layered.row_bytes if self._layered else 0)

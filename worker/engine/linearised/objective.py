"""The objective of a linearised network: f(w) = mean loss of N(x; a) + ∂N(x; a)·(w - a), plus (λ/2)‖w - a‖².

The outputs are affine in w and the loss is convex in them, so f is λ-strongly convex everywhere and its
Hessian is the Gauss–Newton matrix. Every pass streams over chunks. Passes on the way may run in float32; what
is certified is a float64 pass over all rows.

The rounding error of that pass is bounded by a derivation for an MLP and an AllCNN (`layered`). For any other
module it is modelled: the same pass in float32 is off by about as many units, each 2²⁹ times as large, and
MODELLED_FACTOR times the difference, scaled down, is taken as the bound. The certificate names this.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from worker.engine import validation
from worker.engine.linearised.automatic import (
    AutomaticNetwork,
    anchor_shapes,
    missing_layers,
    trained_names,
)
from worker.engine.linearised.layered import LayeredNetwork
from worker.engine.linearised.operators import SampledOperator, StreamedOperator
from worker.engine.networks.architectures import build
from worker.engine.networks.losses import residual_error
from worker.engine.networks.objective import Network, explicit_spec
from worker.engine.networks.streaming import (
    StreamedObjective,
    differentiated_row_bytes,
    loss_for,
    split_parameters,
)
from worker.engine.objective import (
    EXACT,
    Evaluation,
    HessianOperator,
    Reduce,
    Sampling,
    no_reduction,
)
from worker.engine.rounding import gamma, gradient_rounding
from worker.engine.rows import Rows
from worker.engine.sampling import weighted_sample
from worker.engine.validation import EngineInputError

MODELLED_FACTOR = 16.0
_CHUNK_BYTES = 48 * 2**20  # float64 memory of a chunk's rows and derivatives
_PROBE_ROWS = 4
_DEPTH = 8.0  # Errors pass through layers, so a row's gradient is less exact than that of a linear model.
_SINGLE_UNITS = 2.0**-29  # a rounding unit of float64 in units of float32


@dataclass(frozen=True, slots=True)
class _Sums:
    """Sums over all rows of all ranks."""

    loss: float
    gradient: Tensor  # (d,)
    evaluation: float
    mass: float
    chunks: int


class LinearisedObjective(StreamedObjective):
    """The objective of a network linearised at `anchor` over rows.

    The loss is half the squared error for one output and cross-entropy otherwise. `anchor` holds every
    parameter and stored buffer of the network, in the order of `anchor_shapes`. The parameters in `layers`
    move, or all if it is empty, and w consists of these alone. With `prepared`, rows are the results of
    `prepare`, so that the part of the network that does not move is not computed again.
    """

    def __init__(
        self,
        rows: Rows,
        network: Network,
        lam: float,
        anchor: Tensor,
        *,
        layers: Sequence[str] = (),
        prepared: bool = False,
        width: int | None = None,
        classes: int | None = None,
        chunk_bytes: int = _CHUNK_BYTES,
        reduce: Reduce = no_reduction,
        device: torch.device | str = "cpu",
    ) -> None:
        validation.check_rows(rows)
        validation.check_lambda(lam)
        self.rows, self.lam, self.device = rows, float(lam), torch.device(device)
        self.module = (network if isinstance(network, nn.Module) else build(network)).to(self.device)
        whole = split_anchor(anchor, anchor_shapes(self.module), self.device)
        if missing := missing_layers(self.module, layers):
            raise EngineInputError(f"the network has no parameters in {', '.join(missing)}")
        names = trained_names(self.module, layers)
        self.shapes = {name: tuple(whole[name].shape) for name in names}
        self.dimension = sum(math.prod(shape) for shape in self.shapes.values())
        self.anchor = torch.cat([whole[name].reshape(-1) for name in names])
        self.layers, self.prepared = tuple(layers), prepared
        self.network = _network_at(self.module, whole, layers, prepared)
        if prepared and isinstance(self.network, AutomaticNetwork):
            self.network.learn_shape(rows.width if width is None else width)
        self.loss = loss_for(self._outputs(), classes)
        self._reduce = reduce
        self.chunk_rows = max(1, min(4096, rows.count, chunk_bytes // self._row_bytes()))
        self._typical: float | None = None
        self._scores: Tensor | None = None  # scores of the last pass, four bytes per row
        total = reduce(torch.tensor([float(rows.count), 1.0], dtype=torch.float64, device=self.device))
        self.total, self._ranks = int(total[0]), int(total[1])

    @property
    def curvature_floor(self) -> float:
        """λ. The outputs are affine in w and the loss is convex in them, so f is λ-strongly convex."""
        return self.lam

    @property
    def rounding_derived(self) -> bool:
        """Whether the bound on rounding errors is derived rather than modelled."""
        return isinstance(self.network, LayeredNetwork)

    def logits(self, w: Tensor, x: Tensor) -> Tensor:
        """Return N(x; a) + ∂N(x; a)·(w - a) in the dtype of x. (d,), (c, width) -> (c, outputs)"""
        tangent = self.network.at(x)
        image = tangent.push(self.unflatten((w - self.anchor).to(x.dtype)))
        return tangent.base + image

    # -- passes -------------------------------------------------------------------------------------

    def evaluate(self, w: Tensor, *, single: bool = False) -> Evaluation:
        """Return value, gradient and the bound on its rounding from one pass over all rows.

        With `single` the pass runs in float32 and its rounding bound is infinite.
        """
        sums = self._pass(w, torch.float32 if single else torch.float64)
        offset = w - self.anchor
        gradient = sums.gradient / self.total + self.lam * offset
        norm = float(torch.linalg.vector_norm(gradient))
        value = sums.loss / self.total + self.lam / 2 * float(offset @ offset)
        rounding = math.inf if single else self._rounding(w, sums, offset, norm)
        if not (math.isfinite(norm) and math.isfinite(value)):
            norm = rounding = math.inf
        scale, passes = _DEPTH * sums.mass / self.total, 1 if single or self.rounding_derived else 2
        return Evaluation(value, gradient, norm, rounding, scale, passes)

    def hessian(self, w: Tensor, sampling: Sampling = EXACT) -> HessianOperator:
        """Return the Hessian operator at w, over a sample of rows or over all, in float32.

        Products only affect the path to a point. What is certified there is a float64 pass.
        """
        if sampling.rows is None:
            return StreamedOperator(self, w)
        picks, weights = weighted_sample(self._scores, self.rows.count, sampling)
        features, _ = self.rows.sample(picks)
        chunks = [
            (x.to(self.device, torch.float32), weight.to(self.device))
            for x, weight in zip(
                torch.split(features, self.chunk_rows), torch.split(weights, self.chunk_rows), strict=True
            )
        ]
        return SampledOperator(self, w, chunks, sampling)

    def hvp(self, w: Tensor, v: Tensor) -> Tensor:
        """Return the product ∇²f(w)·v in float64. (d,), (d,) -> (d,)"""
        return StreamedOperator(self, w, torch.float64).product(v)

    # -- internals ----------------------------------------------------------------------------------

    def _pass(self, w: Tensor, dtype: torch.dtype) -> _Sums:
        theta = (w - self.anchor).to(dtype)
        parts, bounded = self.unflatten(theta), self.rounding_derived and dtype == torch.float64
        flat = torch.zeros(self.dimension + 4, dtype=torch.float64, device=self.device)
        scores: list[Tensor] = []
        for x, y in self.chunks(dtype):
            chunk, score = self._chunk_sums(parts, x, y, bounded=bounded)
            flat[:3] += chunk[:3]
            flat[3] += 1
            flat[4:] += chunk[3:]
            scores.append((score * torch.linalg.vector_norm(x, dim=1).square()).float().cpu())
        self._scores = torch.cat(scores)
        flat = self._reduce(flat)
        loss, evaluation, mass, chunks = flat[:4].tolist()
        return _Sums(loss, flat[4:], evaluation, mass, int(chunks))

    def _chunk_sums(
        self, parts: Mapping[str, Tensor], x: Tensor, y: Tensor, *, bounded: bool
    ) -> tuple[Tensor, Tensor]:
        """Return loss, evaluation, mass and gradient of a chunk as one vector, and the scores of its rows."""
        if bounded:
            assert isinstance(self.network, LayeredNetwork)
            tangent = self.network.at(x, bounded=True)
            z, z_error = tangent.push_bounded(parts)
            residual = self.loss.residual(z, y)
            pulled = tangent.pull_bounded(residual.q, residual_error(self.loss, residual, z_error))
            bounds = [pulled.evaluation.sum(), pulled.mass.sum()]
            gradient = pulled.gradient
        else:
            plain = self.network.at(x)
            image = plain.push(parts)
            residual = self.loss.residual(plain.base + image, y)
            gradient = plain.pull(residual.q)
            size = torch.linalg.vector_norm(residual.q, dim=1).sum()
            bounds = [torch.zeros_like(size), self._reach * size]
        head = torch.stack([residual.loss.double(), *(bound.double() for bound in bounds)])
        return torch.cat([head, gradient]), residual.stiffness

    @property
    def _reach(self) -> float:
        """Typical ‖∂N(x; a)‖_F, the scale of float32 noise in a gradient."""
        if self._typical is None:
            few, _ = self.rows.sample(torch.arange(min(_PROBE_ROWS, self.rows.count)))
            x = few.to(self.device, torch.float64)
            unit = torch.ones(1, self.loss.outputs, dtype=torch.float64, device=self.device)
            unit /= math.sqrt(self.loss.outputs)
            lengths = [float(self.network.at(x[i : i + 1]).pull(unit).norm()) for i in range(len(x))]
            self._typical = sum(lengths) / len(lengths)
        return self._typical

    def _rounding(self, w: Tensor, sums: _Sums, offset: Tensor, norm: float) -> float:
        pull = self.lam * float(torch.linalg.vector_norm(offset))
        if not isinstance(self.network, LayeredNetwork):
            return self._modelled_rounding(w, sums, pull, norm)
        bound = gradient_rounding(
            evaluation=sums.evaluation,
            mass=sums.mass,
            # within a chunk (one row more on some ranks), across chunks, across ranks
            additions=(self.chunk_rows + 1) * self.network.positions + sums.chunks + self._ranks,
            total=self.total,
            pull=pull,
            norm=norm,
            dimension=self.dimension,
        )
        return bound if math.isfinite(bound) else math.inf

    def _modelled_rounding(self, w: Tensor, double: _Sums, pull: float, norm: float) -> float:
        single = self._pass(w, torch.float32)
        off = float(torch.linalg.vector_norm(single.gradient - double.gradient)) / self.total
        bound = MODELLED_FACTOR * (_SINGLE_UNITS * off + gamma(4) * pull) + gamma(self.dimension + 6) * norm
        return bound if math.isfinite(bound) else math.inf

    def _outputs(self) -> int:
        if isinstance(self.network, LayeredNetwork):
            return self.network.outputs
        row = torch.zeros(1, self.rows.width, dtype=torch.float64, device=self.device)
        return int(self.network.at(row).base.shape[1])

    def _row_bytes(self) -> int:
        """Return the float64 memory of one more row and of what differentiating keeps of it."""
        if isinstance(self.network, LayeredNetwork):
            return self.network.row_bytes
        network = self.network
        moving = {
            name: part.detach().requires_grad_() for name, part in network.anchor(torch.float64).items()
        }
        return differentiated_row_bytes(self.rows.width, lambda x: network.run(moving, x).sum(), self.device)


class Preparation:
    """The constant part of a network of which only some layers move: (c, width) -> (c, k) in float64."""

    def __init__(self, network: LayeredNetwork | AutomaticNetwork) -> None:
        self._network = network
        self.chunk_rows = 256

    def __call__(self, x: Tensor) -> Tensor:
        """Return the input of the first layer that moves, with a bound on its error last if derived."""
        return self._network.prepare(x)


def preparation(
    network: Network, anchor: Tensor, layers: Sequence[str], *, device: torch.device | str
) -> Preparation | None:
    """Return what turns rows into prepared rows, or None if the first layer moves and nothing is constant."""
    module = (network if isinstance(network, nn.Module) else build(network)).to(device)
    made = _network_at(
        module, split_anchor(anchor, anchor_shapes(module), torch.device(device)), layers, False
    )
    return Preparation(made) if made.start > 0 else None


def _network_at(
    module: nn.Module, whole: Mapping[str, Tensor], layers: Sequence[str], prepared: bool
) -> LayeredNetwork | AutomaticNetwork:
    """Return the network at its anchor: written out if it is an MLP or AllCNN, differentiated otherwise."""
    names, spec = trained_names(module, layers), explicit_spec(module)
    if spec is not None:
        return LayeredNetwork(spec, whole, names, prepared=prepared)
    return AutomaticNetwork(module, whole, names, prepared=prepared)


def split_anchor(
    anchor: Tensor, shapes: Mapping[str, tuple[int, ...]], device: torch.device
) -> dict[str, Tensor]:
    """Check a flat anchor and split it into named tensors on the device."""
    size = sum(math.prod(shape) for shape in shapes.values())
    return split_parameters(validation.checked_point(anchor, size, "anchor").to(device), shapes)

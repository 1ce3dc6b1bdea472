"""M: a bound on how fast the Hessian of a layered network changes near a point (docs/maths.md, section 9).

Take a unit direction with share ν_l in layer l. The third derivative of f along it is bounded by a cubic form
in ν with coefficients ≥ 0. The coefficients come from two recursions for each row: forwards for how fast
layers move and bend, backwards for how sensitive the loss is to them. Quantities that can be measured at w
are measured, with their rounding. Operator norms and the radius of the ball extend them to every point of the
ball.
"""

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from worker.engine.networks import layers
from worker.engine.networks.architectures import Activation, AllCnn, Mlp
from worker.engine.networks.explicit_pass import ExplicitPass
from worker.engine.networks.layers import Layer, Trace, norms
from worker.engine.networks.losses import CrossEntropy, Loss
from worker.engine.networks.objective import Network, NetworkObjective, subsample
from worker.engine.networks.sensitivity import BoundedLayer, Perturbation, Sensitivity, propagate_sensitivity
from worker.engine.networks.smoothness import (
    ACTIVATION_BOUNDS,
    LossBounds,
    convolution_bound,
    cubic_norm,
    loss_derivative_bounds,
    quadratic_norm,
)
from worker.engine.rounding import TINY, UNIT

_INFLATION = 1 + 1e-9  # covers a few thousand roundings of sums and products of non-negative numbers
_PIECE_BYTES = 48 * 2**20
_STEP = 1e-4  # finite difference, relative to ‖w‖


@dataclass(frozen=True, slots=True)
class LipschitzBound:
    """Bounds on the derivatives of f on B(w, radius).

    ‖∇³f‖ ≤ `value`, and ‖∇²f‖ ≤ `hessian` without λ. `logits` bounds the mean of ‖z'‖² + ‖z''‖ for a unit
    direction, which would be the curvature if the loss were nowhere flat.
    """

    value: float
    radius: float
    hessian: float
    logits: float
    derivation: str
    passes: float


@dataclass(frozen=True, slots=True)
class DirectionalBounds:
    """Bounds on the derivatives of a row's layers along a direction.

    |s'| ≤ S1·ν and |s''| ≤ S2[ν, ν]. A1 and A2 are the same for the inputs a.
    """

    reach: list[Tensor]  # L of (c,): ‖V·P + b‖ ≤ reach·ν_l
    s1: list[Tensor]  # L of (c, L)
    s2: list[Tensor]  # L of (c, L, L)
    a1: list[Tensor]
    a2: list[Tensor]  # a1[l] and a2[l] belong to the input of layer l


@runtime_checkable
class DistributedObjective(Protocol):
    """An objective whose rows lie on several ranks, each of which sums over its own."""

    def derivative_sums(self, w: Tensor, radius: float) -> Tensor:
        """Return `derivative_sums` over the rows of all ranks."""
        ...


def hessian_lipschitz(
    objective: NetworkObjective, spec: Mlp | AllCnn, w: Tensor, radius: float
) -> LipschitzBound:
    """Bound the derivatives of f on B(w, radius) in one pass over all rows.

    The pass makes a backward sweep for each class.
    """
    ball = _ball(objective, spec, w, radius)
    depth = len(ball)
    if isinstance(objective, DistributedObjective):
        sums = objective.derivative_sums(w, radius)
    else:
        sums = _sums(objective, spec, ball, radius)
    means = sums / objective.total
    third = means[: depth**3].view((depth,) * 3)
    second, moved = means[depth**3 :].view(2, depth, depth)
    gains = ", ".join(f"{bounded.gain:.3g}" for bounded in ball)
    return LipschitzBound(
        value=cubic_norm(third) * _INFLATION,
        radius=radius,
        hessian=quadratic_norm(second) * _INFLATION,
        logits=quadratic_norm(moved) * _INFLATION,
        derivation=f"layer recursion, {spec.activation}, operator norms {gains}",
        passes=1.0 + objective.loss.outputs / 3,  # a sweep without weight gradients costs a third of a pass
    )


def derivative_sums(objective: NetworkObjective, spec: Mlp | AllCnn, w: Tensor, radius: float) -> Tensor:
    """Sum the bounding forms of the third derivative, the second derivative and the logits over all rows.

    -> (L³ + 2L²,) for L layers.
    """
    return _sums(objective, spec, _ball(objective, spec, w, radius), radius)


def _sums(objective: NetworkObjective, spec: Mlp | AllCnn, ball: list[BoundedLayer], radius: float) -> Tensor:
    depth = len(ball)
    sums = torch.zeros(depth**3 + 2 * depth**2, dtype=torch.float64, device=objective.device)
    for chunk, targets in objective.chunks():
        size = _piece(spec, objective.loss, chunk)
        for x, y in zip(torch.split(chunk, size), torch.split(targets, size), strict=True):
            row = _Rows(ball, spec, objective.loss, x, y, radius)
            forms = (row.third(), row.second(), row.moved())
            sums += torch.cat([form.sum(0).reshape(-1) for form in forms])
    return objective.reduce(sums)


def _ball(objective: NetworkObjective, spec: Mlp | AllCnn, w: Tensor, radius: float) -> list[BoundedLayer]:
    """Return the layers with operator norms that hold on the whole ball."""
    stack = ExplicitPass(spec, objective.loss).stack(objective.unflatten(w))
    linears = dense_layers(stack) if isinstance(spec, Mlp) else convolutional_layers(stack, spec)
    return [
        BoundedLayer(
            bounded.layer,
            bounded.gain + bounded.spread * radius,
            bounded.spread,
            bounded.positions,
        )
        for bounded in linears
    ]


def sampled_lipschitz(
    objective: NetworkObjective,
    network: Network,
    w: Tensor,
    radius: float,
    *,
    rows: int = 1024,
    starts: int = 3,
    steps: int = 8,
    seed: int = 0,
) -> LipschitzBound:
    """Estimate M from below, for `heuristic` figures only.

    Ascends |∇³f[u, u, u]| over unit u by differences of Hessian products on a sample of the rows. Samples
    bound a supremum from below, and no safety factor can correct that, so none is applied.
    """
    sample = subsample(objective, network, rows)
    generator = torch.Generator().manual_seed(seed)
    length = _STEP * max(1.0, float(torch.linalg.vector_norm(w)))
    best = hessian = 0.0
    for _ in range(starts):
        u = torch.randn(objective.dimension, generator=generator, dtype=torch.float64).to(w.device)
        u /= torch.linalg.vector_norm(u)
        for _ in range(steps):
            ahead = sample.hessian(w + length * u).product(u)
            behind = sample.hessian(w - length * u).product(u)
            bend = (ahead - behind) / (2 * length)  # ∇³f[u, u, ·]
            value = float(bend @ u)
            best = max(best, float(torch.linalg.vector_norm(bend)))
            hessian = max(hessian, float(torch.linalg.vector_norm(ahead)))
            u = (
                math.copysign(1.0, value) * bend + abs(value) * u
            )  # a damped power step, which keeps ascending
            u /= torch.linalg.vector_norm(u).clamp(min=1e-300)
    passes = 2 * starts * steps * sample.total / objective.total
    return LipschitzBound(best, radius, hessian, 0.0, f"sampled: {starts * steps} directions", passes)


def product_rounding(
    objective: NetworkObjective, spec: Mlp | AllCnn, w: Tensor, bound: LipschitzBound, *, unit: float = UNIT
) -> float:
    """Model how far rounding to `unit` moves H·v or S·v for a unit v, with a margin of sixteen.

    Within a row, rounding acts like a relative change of each weight by γ_K, where K counts the additions
    along a path. That moves the Hessian by M·γ_K·‖w‖. The sums over rows and positions err by γ of their
    terms. The derivatives of the loss err by units of 1 however flat the loss is, which is multiplied by
    ‖z'‖² + ‖z''‖.
    """
    inside = 3 * sum(shape[0] + math.prod(shape[1:]) for shape in objective.shapes.values())
    positions = ExplicitPass(spec, objective.loss).positions
    across = objective.chunk_rows * positions + objective.rows.count / objective.chunk_rows
    size = float(torch.linalg.vector_norm(w))
    terms = inside * bound.value * size + (inside + across) * bound.hessian + 8 * objective.lam
    terms += (objective.loss.link.absolute + 4) * bound.logits
    return 16 * unit * terms


def dense_layers(stack: list[Layer]) -> list[BoundedLayer]:
    """Return the bounds of fully connected layers."""
    return [BoundedLayer(layer, gain=layer.norm, spread=1.0, positions=1) for layer in stack]


def convolutional_layers(stack: list[Layer], spec: AllCnn) -> list[BoundedLayer]:
    """Return the bounds of the 3x3 layers, then of the 1x1 layer with the mean over its positions.

    An entry of the input is in at most `overlap`² patches, so ‖V·P(a)‖_F ≤ ‖V‖_F·overlap·‖a‖. The mean over n
    positions shortens by √n.
    """
    _, height, width = spec.image
    convolutions = []
    for layer, (_, stride) in zip(stack[:-1], spec.channels, strict=True):
        taps = layer.weight.view(len(layer.weight), -1, 3, 3)
        gain = min(convolution_bound(taps, stride), layer.overlap * layer.norm)
        convolutions.append(BoundedLayer(layer, gain=gain, spread=float(layer.overlap), positions=1))
        height, width = -(-height // stride), -(-width // stride)
    positions = height * width
    shorter = (1 + 1e-12) / math.sqrt(positions)
    head = stack[-1]
    return [*convolutions, BoundedLayer(head, gain=head.norm * shorter, spread=shorter, positions=positions)]


class _Rows:
    """A group of rows with everything the bounding forms need of them, valid on the whole ball."""

    def __init__(
        self, ball: list[BoundedLayer], spec: Mlp | AllCnn, loss: Loss, x: Tensor, y: Tensor, radius: float
    ) -> None:
        self.ball, self.bends, self.radius = ball, ACTIVATION_BOUNDS[spec.activation], radius
        a = x if isinstance(spec, Mlp) else x.reshape(-1, *spec.image)
        self.traces = trace(ball, spec.activation, a)
        self.derivatives = self._directional_bounds()
        z, error = layers.pooled(self.traces[-1])
        speed = [torch.linalg.vector_norm(s1, dim=1) for s1 in self.derivatives.s1]
        logit_change = speed[-1] * radius + error
        residual = loss.residual(z, y)
        self.loss: LossBounds = loss_derivative_bounds(loss, residual, logit_change)
        fixed = Perturbation(radius, speed, torch.zeros_like(logit_change))
        self.logits = propagate_sensitivity(ball, spec.activation, self.traces, _classes(loss, z), fixed)
        residual_change = self.loss.second * logit_change + UNIT * (loss.link.absolute + norms(residual.q))
        perturbed = Perturbation(radius, speed, residual_change)
        self.value = propagate_sensitivity(
            ball, spec.activation, self.traces, residual.q[:, None, :], perturbed
        )

    def _directional_bounds(self) -> DirectionalBounds:
        """Bound the derivatives of the layers along a direction.

        s' = V·P + c + W·a', s'' = 2·V·a' + W·a'', a' = φ'·s' and a'' = φ''·s'² + φ'·s''.
        """
        depth, count = len(self.ball), len(self.traces[0].z)
        blank = self.traces[0].z.new_zeros
        derivatives = DirectionalBounds([], [], [], [], [])
        a1, a2 = blank(count, depth), blank(count, depth, depth)
        for index, (linear, layer_trace) in enumerate(zip(self.ball, self.traces, strict=True)):
            derivatives.a1.append(a1)
            derivatives.a2.append(a2)
            reach = _reach(linear, layer_trace) + linear.spread * self.radius * torch.linalg.vector_norm(
                a1, dim=1
            )
            s1, s2 = linear.gain * a1, linear.gain * a2
            s1[:, index] += reach
            s2[:, index] += 2 * linear.spread * a1
            derivatives.reach.append(reach)
            derivatives.s1.append(s1)
            derivatives.s2.append(s2)
            a1, a2 = self.bends.first * s1, self.bends.second * _two(s1, s1) + self.bends.first * s2
        return derivatives

    def second(self) -> Tensor:
        """Bound f'' = ℓ''[z', z'] + ⟨q, z''⟩ by a form in ν. -> (c, L, L)"""
        z1 = self._z1()
        return _scaled(self.loss.second, _two(z1, z1)) + self._bent(self.value)

    def moved(self) -> Tensor:
        """Bound ‖z'‖² + ‖z''‖ over all directions of the logits, by operator norms. -> (c, L, L)"""
        s1, s2 = self.derivatives.s1[-1], self.derivatives.s2[-1]
        return _two(s1, s1) + s2

    def third(self) -> Tensor:
        """Bound f''' = ℓ'''[z', z', z'] + 3·ℓ''[z', z''] + ⟨q, z'''⟩ by a form in ν. -> (c, L, L, L)"""
        z1, derivatives, bends = self._z1(), self.derivatives, self.bends
        z2 = self._bent(self.logits)
        total = _scaled(self.loss.third, _three(z1, _two(z1, z1)))
        total += _scaled(3 * self.loss.second, _three(z1, z2))
        for index, linear in enumerate(self.ball):
            total[:, index] += _scaled(3 * linear.spread * self.value.length[index], derivatives.a2[index])
        for s1, s2, peak in zip(derivatives.s1, derivatives.s2, self.value.peak, strict=False):
            inner = bends.third * _two(s1, s1) + 3 * bends.second * s2
            total += _scaled(peak, _three(s1, inner))
        return total

    def _z1(self) -> Tensor:
        """Bound ‖z'‖ = ‖Σ_l (∂z/∂s_l)·(V_l·P + c)‖. -> (c, L)"""
        return torch.stack(
            [r * reach for r, reach in zip(self.logits.length, self.derivatives.reach, strict=True)], 1
        )

    def _bent(self, sensitivity: Sensitivity) -> Tensor:
        """Bound z'' or ⟨q, z''⟩: Σ_l (∂/∂s_l)·2·V_l·a' + Σ_l (∂/∂a_l)·(φ''∘s_l'²)."""
        derivatives = self.derivatives
        total = torch.zeros_like(derivatives.s2[0])
        for index, linear in enumerate(self.ball):
            total[:, index] += _scaled(2 * linear.spread * sensitivity.length[index], derivatives.a1[index])
        for s1, peak in zip(derivatives.s1, sensitivity.peak, strict=False):
            total += _scaled(self.bends.second * peak, _two(s1, s1))
        return total


def trace(ball: list[BoundedLayer], activation: Activation, a: Tensor) -> list[Trace]:
    """Run the forward pass at w, with a bound on the rounding of each layer."""
    traces: list[Trace] = []
    error = a.new_zeros(len(a))
    for linear in ball:
        if traces:
            below = traces[-1]
            a = layers.value(activation, below.z)
            a = a.reshape(*a.shape[:2], *below.image) if below.image else a
            size = math.sqrt(below.z[0].numel())
            rounding = layers.ACTIVATION_UNITS * UNIT * (norms(below.z) + size) + TINY * size
            error = layers.LARGEST_SLOPE[activation] * below.z_error + rounding
        traces.append(layers.forward(linear.layer, a, error))
    return traces


def _reach(linear: BoundedLayer, layer_trace: Trace) -> Tensor:
    """Bound ‖V·P + c‖ for a unit (V, c) by ‖(P, 1)‖, averaged over positions if the layer is pooled."""
    length = norms(layer_trace.patches) + layer_trace.patches_error
    ones = math.sqrt(math.prod(layer_trace.image))
    if linear.positions > 1:
        length, ones = length / math.sqrt(linear.positions), 1.0
    return torch.hypot(length, length.new_tensor(ones))


def _classes(loss: Loss, z: Tensor) -> Tensor:
    """Return the directions of the logits. -> (c, outputs, outputs)

    Cross-entropy does not depend on their mean, so that is subtracted.
    """
    unit = torch.eye(loss.outputs, dtype=z.dtype, device=z.device)
    if isinstance(loss, CrossEntropy):
        unit = unit - 1 / loss.outputs
    return unit.expand(len(z), -1, -1)


def _piece(spec: Mlp | AllCnn, loss: Loss, x: Tensor) -> int:
    """Return how many rows fit into the memory budget of one group."""
    row = ExplicitPass(spec, loss).row_bytes
    return max(1, min(len(x), _PIECE_BYTES // (row * (1 + loss.outputs))))


def _scaled(weights: Tensor, form: Tensor) -> Tensor:
    return weights.reshape(-1, *(1,) * (form.dim() - 1)) * form


def _two(a: Tensor, b: Tensor) -> Tensor:
    return a[:, :, None] * b[:, None, :]


def _three(a: Tensor, form: Tensor) -> Tensor:
    return a[:, :, None, None] * form[:, None, :, :]

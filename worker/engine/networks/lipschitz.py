"""M: how fast a layered network's Hessian can change near a point (docs/maths.md, section 9).

The third derivative of f along a unit direction, with its share ν_l in each layer, is bounded by a cubic form
in ν with coefficients ≥ 0. They come from two recursions for each row: forwards for how fast layers move and
bend, backwards for how much of it the loss feels. What can be measured at w is measured, with its rounding;
operator norms and the ball's radius carry it to every point of the ball.
"""

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from worker.engine.networks import layers
from worker.engine.networks.architectures import Activation, AllCnn, Mlp
from worker.engine.networks.layered import Layered
from worker.engine.networks.layers import Layer, Trace, norms
from worker.engine.networks.lipschitz_convolutional import convolutions
from worker.engine.networks.losses import CrossEntropy, Loss
from worker.engine.networks.objective import NetworkObjective
from worker.engine.networks.sensitivity import Drift, Feeling, Linear, felt
from worker.engine.networks.smoothness import BENDS, LossBends, cubic_norm, loss_bends, quadratic_norm
from worker.engine.rounding import TINY, UNIT

_INFLATION = 1 + 1e-9  # sums and products of non-negative numbers, some thousands of roundings at most
_PIECE_BYTES = 48 * 2**20


@dataclass(frozen=True, slots=True)
class LipschitzBound:
    """‖∇³f‖ ≤ `value` on B(w, radius); `hessian` bounds ‖∇²f‖ there, without λ; `logits` the mean of
    ‖z'‖² + ‖z''‖ for a unit direction: what curvature would be if the loss were nowhere flat."""

    value: float
    radius: float
    hessian: float
    logits: float
    derivation: str
    passes: float


@dataclass(frozen=True, slots=True)
class Motion:
    """How a row's layers move along a direction: |s'| ≤ S1·ν, |s''| ≤ S2[ν, ν]; the same of a, A1 and A2."""

    reach: list[Tensor]  # L of (c,): ‖V·P + b‖ ≤ reach·ν_l
    s1: list[Tensor]  # L of (c, L)
    s2: list[Tensor]  # L of (c, L, L)
    a1: list[Tensor]
    a2: list[Tensor]  # a1[l], a2[l] are of layer l's input


@runtime_checkable
class Spread(Protocol):
    """An objective whose rows lie with several ranks, and which has each of them sum over its own."""

    def derivative_sums(self, w: Tensor, radius: float) -> Tensor: ...


def hessian_lipschitz(
    objective: NetworkObjective, spec: Mlp | AllCnn, w: Tensor, radius: float
) -> LipschitzBound:
    """One pass over all rows, with a backward sweep for each class."""
    ball = _ball(objective, spec, w, radius)
    depth = len(ball)
    if isinstance(objective, Spread):
        sums = objective.derivative_sums(w, radius)
    else:
        sums = _sums(objective, spec, ball, radius)
    means = sums / objective.total
    third = means[: depth**3].view((depth,) * 3)
    second, moved = means[depth**3 :].view(2, depth, depth)
    gains = ", ".join(f"{it.gain:.3g}" for it in ball)
    return LipschitzBound(
        value=cubic_norm(third) * _INFLATION,
        radius=radius,
        hessian=quadratic_norm(second) * _INFLATION,
        logits=quadratic_norm(moved) * _INFLATION,
        derivation=f"layer recursion, {spec.activation}, operator norms {gains}",
        passes=1.0 + objective.loss.outputs / 3,  # a sweep without weight gradients: a third of a pass
    )


def derivative_sums(
    objective: NetworkObjective, spec: Mlp | AllCnn, w: Tensor, radius: float
) -> Tensor:  # (L³ + 2L²,)
    """The forms of the third and second derivative and of the logits', summed over all rows of all ranks."""
    return _sums(objective, spec, _ball(objective, spec, w, radius), radius)


def _sums(objective: NetworkObjective, spec: Mlp | AllCnn, ball: list[Linear], radius: float) -> Tensor:
    depth = len(ball)
    sums = torch.zeros(depth**3 + 2 * depth**2, dtype=torch.float64, device=objective.device)
    for chunk, targets in objective.chunks():
        size = _piece(spec, objective.loss, chunk)
        for x, y in zip(torch.split(chunk, size), torch.split(targets, size), strict=True):
            row = _Rows(ball, spec, objective.loss, x, y, radius)
            forms = (row.third(), row.second(), row.moved())
            sums += torch.cat([form.sum(0).reshape(-1) for form in forms])
    return objective.reduce(sums)


def _ball(objective: NetworkObjective, spec: Mlp | AllCnn, w: Tensor, radius: float) -> list[Linear]:
    stack = Layered(spec, objective.loss).stack(objective.unflatten(w))
    linears = dense(stack) if isinstance(spec, Mlp) else convolutions(stack, spec)
    return [Linear(it.layer, it.gain + it.spread * radius, it.spread, it.positions) for it in linears]


def product_rounding(
    objective: NetworkObjective, spec: Mlp | AllCnn, w: Tensor, bound: LipschitzBound, *, unit: float = UNIT
) -> float:
    """How far rounding to `unit` moves H·v or S·v for a unit v: a model, with a margin of sixteen.

    Inside a row rounding acts like a change of each weight by γ_K of itself, K counting the additions along a
    path, and so moves the Hessian by M·γ_K·‖w‖; the sums over rows and positions err by γ of their terms. The
    loss's own derivatives err by units of 1, however flat the loss is: that is times ‖z'‖² + ‖z''‖.
    """
    inside = 3 * sum(shape[0] + math.prod(shape[1:]) for shape in objective.shapes.values())
    positions = Layered(spec, objective.loss).positions
    across = objective.chunk_rows * positions + objective.rows.count / objective.chunk_rows
    size = float(torch.linalg.vector_norm(w))
    terms = inside * bound.value * size + (inside + across) * bound.hessian + 8 * objective.lam
    terms += (objective.loss.link.absolute + 4) * bound.logits
    return 16 * unit * terms


def dense(stack: list[Layer]) -> list[Linear]:
    return [Linear(layer, gain=layer.norm, spread=1.0, positions=1) for layer in stack]


class _Rows:
    """A piece of rows: everything the cubic form needs of them, valid on the whole ball."""

    def __init__(
        self, ball: list[Linear], spec: Mlp | AllCnn, loss: Loss, x: Tensor, y: Tensor, radius: float
    ) -> None:
        self.ball, self.bends, self.radius = ball, BENDS[spec.activation], radius
        a = x if isinstance(spec, Mlp) else x.reshape(-1, *spec.image)
        self.traces = trace(ball, spec.activation, a)
        self.motion = self._motion()
        z, error = layers.pooled(self.traces[-1])
        speed = [torch.linalg.vector_norm(s1, dim=1) for s1 in self.motion.s1]
        shift = speed[-1] * radius + error
        residual = loss.residual(z, y)
        self.loss: LossBends = loss_bends(loss, residual, shift)
        still = Drift(radius, speed, torch.zeros_like(shift))
        self.logits = felt(ball, spec.activation, self.traces, _classes(loss, z), still)
        off = self.loss.second * shift + UNIT * (loss.link.absolute + norms(residual.q))
        moved = Drift(radius, speed, off)
        self.value = felt(ball, spec.activation, self.traces, residual.q[:, None, :], moved)

    def _motion(self) -> Motion:
        """s' = V·P + c + W·a', s'' = 2·V·a' + W·a''; a' = φ'·s', a'' = φ''·s'² + φ'·s''."""
        depth, count = len(self.ball), len(self.traces[0].z)
        blank = self.traces[0].z.new_zeros
        motion = Motion([], [], [], [], [])
        a1, a2 = blank(count, depth), blank(count, depth, depth)
        for index, (linear, trace_) in enumerate(zip(self.ball, self.traces, strict=True)):
            motion.a1.append(a1)
            motion.a2.append(a2)
            reach = _reach(linear, trace_) + linear.spread * self.radius * torch.linalg.vector_norm(a1, dim=1)
            s1, s2 = linear.gain * a1, linear.gain * a2
            s1[:, index] += reach
            s2[:, index] += 2 * linear.spread * a1
            motion.reach.append(reach)
            motion.s1.append(s1)
            motion.s2.append(s2)
            a1, a2 = self.bends.first * s1, self.bends.second * _two(s1, s1) + self.bends.first * s2
        return motion

    def second(self) -> Tensor:
        """f'' = ℓ''[z', z'] + ⟨q, z''⟩ ≤ (c, L, L)[ν, ν]."""
        z1 = self._z1()
        return _scaled(self.loss.second, _two(z1, z1)) + self._bent(self.value)

    def moved(self) -> Tensor:
        """‖z'‖² + ‖z''‖ ≤ (c, L, L)[ν, ν], by operator norms: of every direction of the logits."""
        s1, s2 = self.motion.s1[-1], self.motion.s2[-1]
        return _two(s1, s1) + s2

    def third(self) -> Tensor:
        """f''' = ℓ'''[z', z', z'] + 3·ℓ''[z', z''] + ⟨q, z'''⟩ ≤ (c, L, L, L)[ν, ν, ν]."""
        z1, motion, bends = self._z1(), self.motion, self.bends
        z2 = self._bent(self.logits)
        total = _scaled(self.loss.third, _three(z1, _two(z1, z1)))
        total += _scaled(3 * self.loss.second, _three(z1, z2))
        for index, linear in enumerate(self.ball):
            total[:, index] += _scaled(3 * linear.spread * self.value.length[index], motion.a2[index])
        for s1, s2, peak in zip(motion.s1, motion.s2, self.value.peak, strict=False):
            inner = bends.third * _two(s1, s1) + 3 * bends.second * s2
            total += _scaled(peak, _three(s1, inner))
        return total

    def _z1(self) -> Tensor:
        """‖z'‖ = ‖Σ_l (∂z/∂s_l)·(V_l·P + c)‖."""
        return torch.stack(
            [r * reach for r, reach in zip(self.logits.length, self.motion.reach, strict=True)], 1
        )

    def _bent(self, feeling: Feeling) -> Tensor:
        """z'' or ⟨q, z''⟩: Σ_l (∂/∂s_l)·2·V_l·a' + Σ_l (∂/∂a_l)·(φ''∘s_l'²)."""
        motion = self.motion
        total = torch.zeros_like(motion.s2[0])
        for index, linear in enumerate(self.ball):
            total[:, index] += _scaled(2 * linear.spread * feeling.length[index], motion.a1[index])
        for s1, peak in zip(motion.s1, feeling.peak, strict=False):
            total += _scaled(self.bends.second * peak, _two(s1, s1))
        return total


def trace(ball: list[Linear], activation: Activation, a: Tensor) -> list[Trace]:
    """The forward pass at w, with the rounding of each layer."""
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


def _reach(linear: Linear, trace_: Trace) -> Tensor:
    """‖V·P + c‖ for a unit (V, c): ‖(P, 1)‖; through the mean over positions, where the layer is pooled."""
    length = norms(trace_.patches) + trace_.patches_error
    ones = math.sqrt(math.prod(trace_.image))
    if linear.positions > 1:
        length, ones = length / math.sqrt(linear.positions), 1.0
    return torch.hypot(length, length.new_tensor(ones))


def _classes(loss: Loss, z: Tensor) -> Tensor:
    """(c, outputs, outputs): the logits' directions, less their mean for cross-entropy, blind to it."""
    unit = torch.eye(loss.outputs, dtype=z.dtype, device=z.device)
    if isinstance(loss, CrossEntropy):
        unit = unit - 1 / loss.outputs
    return unit.expand(len(z), -1, -1)


def _piece(spec: Mlp | AllCnn, loss: Loss, x: Tensor) -> int:
    row = Layered(spec, loss).row_bytes
    return max(1, min(len(x), _PIECE_BYTES // (row * (1 + loss.outputs))))


def _scaled(weights: Tensor, form: Tensor) -> Tensor:
    return weights.reshape(-1, *(1,) * (form.dim() - 1)) * form


def _two(a: Tensor, b: Tensor) -> Tensor:
    return a[:, :, None] * b[:, None, :]


def _three(a: Tensor, form: Tensor) -> Tensor:
    return a[:, :, None, None] * form[:, None, :, :]

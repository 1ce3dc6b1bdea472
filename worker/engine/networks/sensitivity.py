"""Sensitivity of the logits, or of the loss, to each layer, on a ball around w.

R_l = ∂z/∂s_l and B_l = ∂z/∂a_l are computed from the last layer backwards: B_l = R_{l+1}·W_{l+1} and R_l =
B_l·φ'(s_l). Along a direction of parameters they change by B' = R'·W + R·V and R' = B'·φ' + B·φ''·s', which
bounds their change within the ball. z may be any fixed combination of logits, or the one given by the
residual of the loss. docs/maths.md, section 9, has the derivation.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from worker.engine.networks import layers
from worker.engine.networks.architectures import Activation
from worker.engine.networks.layers import Layer, Trace, norms
from worker.engine.networks.smoothness import ACTIVATION_BOUNDS
from worker.engine.rounding import UNIT

_MOST_DIRECTIONS = 16  # With more directions the Frobenius norm replaces the spectral norm.


@dataclass(frozen=True, slots=True)
class BoundedLayer:
    """A layer a ↦ W·P(a) + b, pooled over `positions`, with bounds on its norms.

    ‖W·P(a)‖ ≤ gain·‖a‖ and ‖V·P(a)‖ ≤ spread·‖V‖_F·‖a‖.
    """

    layer: Layer
    gain: float
    spread: float
    positions: int


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """Bounds on the sensitivity to each layer, one (c,) per layer.

    `length` bounds ‖∂/∂s_l‖ for L layers, and `peak` the largest entry of ∂/∂a_l for L - 1 layers.

    For several directions, the length is a spectral norm and an entry is the norm of a column.
    """

    length: list[Tensor]
    peak: list[Tensor]


@dataclass(frozen=True, slots=True)
class Perturbation:
    """How far quantities move on the ball.

    `speed` is sup ‖s'‖ of each layer and `directions` the change of the directions, (c,).
    """

    radius: float
    speed: list[Tensor]  # L of (c,)
    directions: Tensor


def propagate_sensitivity(
    ball: list[BoundedLayer],
    activation: Activation,
    traces: list[Trace],
    directions: Tensor,
    perturbation: Perturbation,
) -> Sensitivity:
    """Bound the sensitivity of directions of the logits to every layer, on the whole ball.

    `directions` has shape (c, k, outputs).
    """
    count, k, _ = directions.shape
    delta = _unpooled(directions, traces[-1])
    error = 4 * UNIT * norms(delta)
    size = _spectral(directions)
    length, peak = [size + perturbation.directions], list[Tensor]()
    changes = _changes(
        ball, ACTIVATION_BOUNDS[activation].first, ACTIVATION_BOUNDS[activation].second, perturbation.speed
    )
    for index in range(len(ball) - 1, 0, -1):
        delta, error = layers.backward(ball[index].layer, traces[index], delta, error)
        within, change = changes[index - 1]
        change_bound = perturbation.radius * size * change[0] + within[0] * perturbation.directions
        peak.insert(0, _columns(delta, error, count, k) + change_bound)
        delta, error = _through(activation, traces[index - 1], delta, error, k)
        change_bound = perturbation.radius * size * change[1] + within[1] * perturbation.directions
        measured = _spectral(delta.reshape(count, k, -1)) + _joint(error, count, k)
        length.insert(0, torch.minimum(measured + change_bound, within[1] * (size + perturbation.directions)))
    return Sensitivity(length, peak)


def _changes(
    ball: list[BoundedLayer], first: float, second: float, speed: list[Tensor]
) -> list[tuple[tuple[float, float], tuple[Tensor, Tensor]]]:
    """Bound (‖B‖, ‖R‖) and (‖B'‖, ‖R'‖) on the ball by operator norms, for each layer but the last."""
    length, change = 1.0, torch.zeros_like(speed[-1])
    bounds: list[tuple[tuple[float, float], tuple[Tensor, Tensor]]] = []
    for linear, moved in zip(ball[:0:-1], speed[-2::-1], strict=True):
        before, before_change = linear.gain * length, linear.gain * change + linear.spread * length
        length, change = first * before, first * before_change + second * before * moved
        bounds.insert(0, ((before, length), (before_change, change)))
    return bounds


def _through(
    activation: Activation, below: Trace, delta: Tensor, error: Tensor, k: int
) -> tuple[Tensor, Tensor]:
    """Return ∂/∂s = ∂/∂a ∘ φ'(s) and the bound on its rounding."""
    slope = layers.slope(activation, below.z).repeat_interleave(k, 0)
    highest = below.z.flatten(1).abs().amax(1)
    bend = layers.LARGEST_BEND[activation] * below.z_error
    slope_error = (bend + layers.ACTIVATION_UNITS * UNIT * (1 + highest)).repeat_interleave(k)
    lowered = delta * slope
    error = layers.LARGEST_SLOPE[activation] * error + (norms(delta) + error) * slope_error
    return lowered, error + UNIT * norms(lowered)


def _unpooled(directions: Tensor, last: Trace) -> Tensor:
    """Flatten (c, k, outputs) to (c·k, outputs), or spread it evenly over positions."""
    flat = directions.flatten(0, 1)
    if last.z.dim() == 2:
        return flat
    positions = last.z.shape[2]
    return (flat / positions)[:, :, None].expand(-1, -1, positions)


def _spectral(matrices: Tensor) -> Tensor:
    """Return an upper bound on the largest singular value of each matrix. (c, k, n) -> (c,)"""
    if matrices.shape[1] == 1 or matrices.shape[1] > _MOST_DIRECTIONS:
        return norms(matrices) * (1 + 1e-9)
    gram = matrices @ matrices.transpose(1, 2)
    trace = gram.diagonal(dim1=1, dim2=2).sum(1)
    largest: Tensor = torch.linalg.eigvalsh(gram)[:, -1]
    return (largest + 1e-10 * trace).clamp(min=0).sqrt() * (1 + 1e-9)


def _columns(delta: Tensor, error: Tensor, count: int, k: int) -> Tensor:
    """Return the largest column norm of each row's k × n matrix. -> (c,)"""
    squares = delta.reshape(count, k, -1).square().sum(1)
    return squares.amax(1).sqrt() * (1 + 1e-9) + _joint(error, count, k)


def _joint(error: Tensor, count: int, k: int) -> Tensor:
    """Combine the errors of the k directions of each row. -> (c,)"""
    joint: Tensor = torch.linalg.vector_norm(error.view(count, k), dim=1)
    return joint

"""How strongly logits, or the loss, feel each layer of a network: measured at w, carried to a ball around it.

R_l = ∂z/∂s_l and B_l = ∂z/∂a_l, from the last layer backwards: B_l = R_{l+1}·W_{l+1}, R_l = B_l·φ'(s_l).
Along a direction of parameters they change by B' = R'·W + R·V and R' = B'·φ' + B·φ''·s', whence their change
within the ball. z may be any fixed combinations of logits, or the one the loss's residual makes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from worker.engine.networks import layers
from worker.engine.networks.architectures import Activation
from worker.engine.networks.layers import Layer, Trace, norms
from worker.engine.networks.smoothness import BENDS
from worker.engine.rounding import UNIT

_MOST_DIRECTIONS = 16  # beyond, a Frobenius norm stands for the spectral one


@dataclass(frozen=True, slots=True)
class Linear:
    """A layer a ↦ W·P(a) + b: ‖W·P(a)‖ ≤ gain·‖a‖, ‖V·P(a)‖ ≤ spread·‖V‖_F·‖a‖; pooled over `positions`."""

    layer: Layer
    gain: float
    spread: float
    positions: int


@dataclass(frozen=True, slots=True)
class Feeling:
    """Row by row, each (c,): `length` of ∂/∂s_l for L layers, and the largest entry of ∂/∂a_l for L - 1.

    For several directions the length is a spectral norm, and an entry the norm of a column.
    """

    length: list[Tensor]
    peak: list[Tensor]


@dataclass(frozen=True, slots=True)
class Drift:
    """How far things move on the ball: its radius, each layer's sup ‖s'‖, and the directions, (c,)."""

    radius: float
    speed: list[Tensor]  # L of (c,)
    directions: Tensor


def felt(
    ball: list[Linear], activation: Activation, traces: list[Trace], directions: Tensor, drift: Drift
) -> Feeling:
    """`directions` (c, k, outputs) of the logits, felt by every layer; valid on the whole ball."""
    count, several, _ = directions.shape
    delta = _unpooled(directions, traces[-1])
    error = 4 * UNIT * norms(delta)
    size = _spectral(directions)
    length, peak = [size + drift.directions], list[Tensor]()
    changes = _changes(ball, BENDS[activation].first, BENDS[activation].second, drift.speed)
    for index in range(len(ball) - 1, 0, -1):
        delta, error = layers.backward(ball[index].layer, traces[index], delta, error)
        within, change = changes[index - 1]
        off = drift.radius * size * change[0] + within[0] * drift.directions
        peak.insert(0, _columns(delta, error, count, several) + off)
        delta, error = _through(activation, traces[index - 1], delta, error, several)
        off = drift.radius * size * change[1] + within[1] * drift.directions
        measured = _spectral(delta.reshape(count, several, -1)) + _joint(error, count, several)
        length.insert(0, torch.minimum(measured + off, within[1] * (size + drift.directions)))
    return Feeling(length, peak)


def _changes(
    ball: list[Linear], first: float, second: float, speed: list[Tensor]
) -> list[tuple[tuple[float, float], tuple[Tensor, Tensor]]]:
    """For each layer but the last: (‖B‖, ‖R‖) and (‖B'‖, ‖R'‖) on the ball, by operator norms alone."""
    length, change = 1.0, torch.zeros_like(speed[-1])
    found: list[tuple[tuple[float, float], tuple[Tensor, Tensor]]] = []
    for linear, moved in zip(ball[:0:-1], speed[-2::-1], strict=True):
        before, before_change = linear.gain * length, linear.gain * change + linear.spread * length
        length, change = first * before, first * before_change + second * before * moved
        found.insert(0, ((before, length), (before_change, change)))
    return found


def _through(
    activation: Activation, below: Trace, delta: Tensor, error: Tensor, several: int
) -> tuple[Tensor, Tensor]:
    """∂/∂a to ∂/∂s = ∂/∂a ∘ φ'(s), and its rounding."""
    slope = layers.slope(activation, below.z).repeat_interleave(several, 0)
    highest = below.z.flatten(1).abs().amax(1)
    off = layers.LARGEST_BEND[activation] * below.z_error + layers.ACTIVATION_UNITS * UNIT * (1 + highest)
    off = off.repeat_interleave(several)
    lowered = delta * slope
    error = layers.LARGEST_SLOPE[activation] * error + (norms(delta) + error) * off
    return lowered, error + UNIT * norms(lowered)


def _unpooled(directions: Tensor, last: Trace) -> Tensor:
    """(c, k, outputs) -> (c·k, outputs), or with a share for each position."""
    flat = directions.flatten(0, 1)
    if last.z.dim() == 2:
        return flat
    positions = last.z.shape[2]
    return (flat / positions)[:, :, None].expand(-1, -1, positions)


def _spectral(matrices: Tensor) -> Tensor:
    """(c, k, n) -> (c,): at least the largest singular value of each."""
    if matrices.shape[1] == 1 or matrices.shape[1] > _MOST_DIRECTIONS:
        return norms(matrices) * (1 + 1e-9)
    gram = matrices @ matrices.transpose(1, 2)
    trace = gram.diagonal(dim1=1, dim2=2).sum(1)
    largest: Tensor = torch.linalg.eigvalsh(gram)[:, -1]
    return (largest + 1e-10 * trace).clamp(min=0).sqrt() * (1 + 1e-9)


def _columns(delta: Tensor, error: Tensor, count: int, several: int) -> Tensor:
    """(c,): the largest norm of a column of each row's k × n matrix."""
    squares = delta.reshape(count, several, -1).square().sum(1)
    return squares.amax(1).sqrt() * (1 + 1e-9) + _joint(error, count, several)


def _joint(error: Tensor, count: int, several: int) -> Tensor:
    joint: Tensor = torch.linalg.vector_norm(error.view(count, several), dim=1)
    return joint

"""Derivative bounds of activations and losses, and operator norms (docs/maths.md, section 9).

All are rounded up.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from worker.engine.networks.architectures import Activation
from worker.engine.networks.losses import CrossEntropy, Loss, Residual

_GRID = 16


@dataclass(frozen=True, slots=True)
class DerivativeBounds:
    """sup |φ'|, sup |φ''| and sup |φ'''| over the whole line."""

    first: float
    second: float
    third: float


ACTIVATION_BOUNDS: dict[Activation, DerivativeBounds] = {
    "gelu": DerivativeBounds(1.1290, 0.7979, 0.7789),  # at √2, 0 and √((7 - √33)/2)
    "silu": DerivativeBounds(1.0999, 0.5, 0.3082),
    "tanh": DerivativeBounds(1.0, 0.7699, 2.0),  # 4/(3√3) and 2
    "softplus": DerivativeBounds(1.0, 0.25, 0.0963),  # of the logistic function: 1/4 and 1/(6√3)
}

SOFTMAX_THIRD = 0.2722  # √2/(3√3), see `loss_derivative_bounds`


@dataclass(frozen=True, slots=True)
class LossBounds:
    """Bounds for each row, (c,), on ‖∂ℓ/∂z‖, ‖∂²ℓ/∂z²‖ and ‖∂³ℓ/∂z³‖."""

    first: Tensor
    second: Tensor
    third: Tensor


def loss_derivative_bounds(loss: Loss, residual: Residual, logit_change: Tensor) -> LossBounds:
    """Bound the derivatives of the loss for all logits near those that gave `residual`.

    The bounds hold for changes of the logits up to `logit_change` (c,).

    For cross-entropy, ∂²ℓ[v, v] is the variance of v under p and ∂³ℓ[v, v, v] is its third central moment. A
    unit v has a range of at most √2. A variable of range R has a third central moment of at most R³/(6√3),
    and of at most R times its variance. If logits change by E, every p(1-p) grows by at most e^{4E}.
    """
    first = torch.linalg.vector_norm(residual.q, dim=1)
    if isinstance(loss, CrossEntropy):
        near = residual.stiffness * torch.exp(4 * logit_change)
        second = near.clamp(max=0.5)
        third = (math.sqrt(2) * (1 + 1e-9) * near).clamp(max=SOFTMAX_THIRD)
        return LossBounds((first + second * logit_change).clamp(max=math.sqrt(2) * (1 + 1e-9)), second, third)
    second = torch.ones_like(first)
    return LossBounds(first + logit_change, second, torch.zeros_like(first))


def cubic_norm(tensor: Tensor) -> float:
    """Bound C(ν) = Σ t_{ijk}·ν_i·ν_j·ν_k over unit ν, for coefficients t ≥ 0 of shape (L, L, L).

    C(ν) = νᵀT(ν⊗ν), where T is the symmetrised tensor as an L × L² matrix, so C ≤ ‖T‖₂. TTᵀ is non-negative,
    so for any x > 0 its largest eigenvalue is at most max (TTᵀx)_i/x_i (Collatz & Wielandt).

    >>> cubic_norm(torch.ones(2, 2, 2, dtype=torch.float64))  # (ν_1 + ν_2)³ at ν = (1, 1)/√2
    2.82842...
    """
    axes = ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0))
    symmetric = torch.stack([tensor.permute(axis) for axis in axes]).mean(0).flatten(1)
    return math.sqrt(_perron(symmetric @ symmetric.T))


def quadratic_norm(matrix: Tensor) -> float:
    """Bound Σ t_{ij}·ν_i·ν_j over unit ν, for coefficients t ≥ 0 of shape (L, L).

    The argument is that of `cubic_norm`.
    """
    return _perron((matrix + matrix.T) / 2)


def _perron(matrix: Tensor) -> float:
    """Bound the largest eigenvalue of a symmetric matrix (L, L) with entries ≥ 0 from above."""
    if not bool(torch.isfinite(matrix).all()):
        return math.inf
    x = matrix.new_ones(len(matrix))
    for _ in range(50):
        x = matrix @ x
        x = x / x.amax().clamp(min=1e-300) + 1e-12
    return float((matrix @ x / x).amax()) * (1 + 1e-9)


def spectral_bound(matrices: Tensor) -> float:
    """Bound the largest singular value of all `matrices` (…, m, k), from a backward stable decomposition."""
    return float(torch.linalg.matrix_norm(matrices, 2).amax()) * (1 + 1e-9)


def convolution_bound(weight: Tensor, stride: int) -> float:
    """Bound ‖a ↦ W * a‖₂ for 3x3 taps (out, in, 3, 3), zero padding and any image size.

    The zero-padded map is a compression of the map on the infinite grid. With the input split into its
    stride² phases, that map multiplies each frequency θ by a matrix Ŵ(θ) (out, in·stride²), a trigonometric
    polynomial of degree 1 in each angle. Such a polynomial is at most 1/cos(π/N) times its largest value on N
    equally spaced angles, for each of the two angles (Ehlich & Zeller 1964).
    """
    out, channels = weight.shape[:2]
    angles = 2 * math.pi * torch.arange(_GRID, dtype=torch.float64, device=weight.device) / _GRID
    symbol = torch.zeros(
        _GRID, _GRID, out, channels, stride, stride, dtype=torch.complex128, device=weight.device
    )
    for row in range(3):
        for column in range(3):
            (turn, phase), (turn2, phase2) = divmod(row - 1, stride), divmod(column - 1, stride)
            wave = torch.exp(1j * (turn * angles[:, None] + turn2 * angles[None, :]))
            symbol[..., phase, phase2] += wave[:, :, None, None] * weight[:, :, row, column]
    half = symbol[: _GRID // 2 + 1].flatten(3)  # the other half is complex conjugate
    return spectral_bound(half) / math.cos(math.pi / _GRID) ** 2

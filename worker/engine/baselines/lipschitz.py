"""Smoothness constants that the published bounds take as given.

For the losses of the built-in families they are proven. Let z be the logits of a row and B its length. The
derivatives of ℓ in z then bound those in w: ‖∇ℓ‖ ≤ slope·B, ‖∇²ℓ‖ ≤ curvature·B², and ∇²ℓ is
(third·B³)-Lipschitz.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from worker.engine.families import Logistic, Ridge, Softmax
from worker.engine.linear import LinearObjective
from worker.engine.objective import HessianOperator, Objective

_GRAM_WIDTH = 2048  # Up to this width XᵀX is formed, and ‖X‖₂ is exact.


@dataclass(frozen=True, slots=True)
class LossConstants:
    """Bounds over all logits, in 2-norms, on ‖∂ℓ/∂z‖, ‖∂²ℓ/∂z²‖ and the Lipschitz constant of ∂²ℓ/∂z²."""

    slope: float
    curvature: float
    third: float


# Logistic: |ℓ'''| ≤ 1/(6√3), where the publications use 1/4. Softmax: ‖p - e_y‖ ≤ √2; diag(p) - ppᵀ ⪯ I/2;
# the third derivative along a unit u is the third central moment of a variable whose values span at most √2,
# and such a moment is at most range³/(6√3); a symmetric trilinear form takes its norm on the diagonal
# (Banach 1938).
LOGISTIC = LossConstants(slope=1.0, curvature=0.25, third=0.25)
SOFTMAX = LossConstants(slope=math.sqrt(2), curvature=0.5, third=2 * math.sqrt(2) / (6 * math.sqrt(3)))
RIDGE = LossConstants(slope=math.inf, curvature=1.0, third=0.0)


def loss_constants(objective: Objective) -> LossConstants | None:
    """Return the proven constants of the loss, or None for networks and unknown losses."""
    known = ((Softmax, SOFTMAX), (Logistic, LOGISTIC), (Ridge, RIDGE))
    return next((constants for family, constants in known if isinstance(objective, family)), None)


@dataclass(frozen=True, slots=True)
class RowFacts:
    """Facts about the rows, including the bias's constant feature.

    `longer` counts the rows above a length, `spectral` bounds ‖X‖₂ and `image` is ‖XP‖.
    """

    longer: int
    spectral: float
    image: float


def row_facts(objective: LinearObjective, step: Tensor, *, row_bound: float) -> RowFacts:
    """Measure the rows in one pass.

    ‖X‖₂ comes from XᵀX if that is small, and is bounded by ‖X‖_F otherwise.
    """
    width = objective.rows.width + int(objective.bias)
    small = width <= _GRAM_WIDTH
    gram = torch.zeros((width, width) if small else (1, 1), dtype=torch.float64, device=objective.device)
    sums = torch.zeros(2, dtype=torch.float64, device=objective.device)
    for x, _ in objective.chunks():
        rows = objective.extended(x)
        squares = rows.square().sum(1)
        sums[0] += (squares.sqrt() > row_bound * (1 + 1e-12)).sum()
        sums[1] += objective.logits(step, x).square().sum()
        gram += rows.T @ rows if small else squares.sum()
    sums, gram = objective.reduce(sums), objective.reduce(gram)
    largest = float(torch.linalg.eigvalsh(gram)[-1]) if small else float(gram)
    slack = 1 + 1e-9  # well above the rounding of these sums
    return RowFacts(
        longer=int(sums[0]),
        spectral=math.sqrt(max(0.0, largest)) * slack,
        image=math.sqrt(float(sums[1])) * slack,
    )


def largest_eigenvalue(
    operator: HessianOperator, like: Tensor, *, iterations: int = 20, seed: int = 0
) -> float:
    """Estimate the largest |eigenvalue| of the Hessian by power iteration.

    The result is a Rayleigh quotient, so it is never above the largest |eigenvalue|: an estimate of L from
    below. `like` (d,) gives dimension and device.
    """
    generator = torch.Generator().manual_seed(seed)
    v = torch.randn(len(like), generator=generator, dtype=torch.float64).to(like.device)
    estimate = 0.0
    for _ in range(iterations):
        v = v / torch.linalg.vector_norm(v)
        image = operator.product(v)
        estimate = max(estimate, abs(float(v @ image)))
        v = image
    return estimate

"""Constants of the losses that published bounds take as given, proven for the families served here.

With z the logits of a row, ℓ's derivatives in z give those in w through the row's length B:
‖∇ℓ‖ ≤ slope·B, ‖∇²ℓ‖ ≤ curvature·B², and ∇²ℓ is (third·B³)-Lipschitz.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from worker.engine.families import Logistic, Ridge, Softmax
from worker.engine.linear import LinearObjective
from worker.engine.objective import Objective

_GRAM_WIDTH = 2048  # up to here XᵀX is formed, and ‖X‖₂ is exact


@dataclass(frozen=True, slots=True)
class LossConstants:
    """Bounds over all logits of ‖∂ℓ/∂z‖, ‖∂²ℓ/∂z²‖ and the Lipschitz constant of the latter, 2-norms."""

    slope: float
    curvature: float
    third: float


# Logistic: |ℓ'''| ≤ 1/(6√3), where the publications take 1/4. Softmax: ‖p - e_y‖ ≤ √2; diag(p) - ppᵀ ⪯ I/2;
# the third derivative along a unit u is the third central moment of a variable whose values span at most √2,
# and such a moment is at most range³/(6√3); a symmetric trilinear form takes its norm on the diagonal
# (Banach 1938).
LOGISTIC = LossConstants(slope=1.0, curvature=0.25, third=0.25)
SOFTMAX = LossConstants(slope=math.sqrt(2), curvature=0.5, third=2 * math.sqrt(2) / (6 * math.sqrt(3)))
RIDGE = LossConstants(slope=math.inf, curvature=1.0, third=0.0)


def loss_constants(objective: Objective) -> LossConstants | None:
    """None where nothing is proven: networks, and losses not known here."""
    known = ((Softmax, SOFTMAX), (Logistic, LOGISTIC), (Ridge, RIDGE))
    return next((constants for family, constants in known if isinstance(objective, family)), None)


@dataclass(frozen=True, slots=True)
class RowFacts:
    """Of the rows with the bias's constant feature: how many exceed a length, ‖X‖₂ (or more), and ‖XP‖."""

    longer: int
    spectral: float
    image: float


def row_facts(objective: LinearObjective, step: Tensor, *, row_bound: float) -> RowFacts:
    """One pass. ‖X‖₂ comes from XᵀX where that is small and is ‖X‖_F, never less, elsewhere."""
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
    slack = 1 + 1e-9  # far above the rounding of these sums
    return RowFacts(
        longer=int(sums[0]),
        spectral=math.sqrt(max(0.0, largest)) * slack,
        image=math.sqrt(float(sums[1])) * slack,
    )

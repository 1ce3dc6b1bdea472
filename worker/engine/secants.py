"""Steps from a model of the curvature, corrected by what earlier gradients have shown.

The model P is a curvature sketch, or a Hessian over a sample of the rows (`worker.engine.recycling`). With a
sketch each step costs one gradient and nothing else. Let s_j be the earlier steps and y_j the changes of the
gradient along them. The next step first moves within the span of the s_j to where the gradient should be
smallest, judging by the y_j, and then takes a Newton step with P for what is left:

    γ = argmin ‖g - Yγ‖,    step = -Sγ - P⁻¹·(g - Yγ).

This is Anderson's acceleration (1965) in its multisecant form (Fang & Saad 2009). On a quadratic it does what
GMRES preconditioned by P would do, at the price of one pass for each iteration. It minimises ‖g‖,
the quantity that B1 certifies.
"""

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor


class CurvatureModel(Protocol):
    """An approximate inverse of the Hessian near the current point."""

    @property
    def passes(self) -> float:
        """What its solves have cost so far."""
        ...

    def solve(self, g: Tensor, lam: float) -> Tensor:
        """Return an approximation of H⁻¹·g. (d,) -> (d,)"""
        ...


@dataclass(slots=True)
class SecantSteps:
    """Proposes steps from gradients. One object belongs to one descent."""

    model: CurvatureModel
    lam: float
    patience: int = 0  # steps that may hardly shrink ‖g‖ before another method takes over
    steps: list[Tensor] = field(default_factory=list)  # s_j, each (d,)
    changes: list[Tensor] = field(default_factory=list)  # y_j, each (d,)

    def propose(self, g: Tensor) -> Tensor:
        """Return the next step from the gradient at the current point. (d,) -> (d,)"""
        if not self.steps:
            return -self.model.solve(g, self.lam)
        changes, steps = torch.stack(self.changes, 1), torch.stack(self.steps, 1)  # (d, k)
        gamma: Tensor = torch.linalg.lstsq(changes, g[:, None]).solution
        return -(steps @ gamma)[:, 0] - self.model.solve(g - (changes @ gamma)[:, 0], self.lam)

    def learn(self, step: Tensor, change: Tensor) -> None:
        """Remember a step (d,) that was taken and the change of the gradient (d,) along it."""
        self.steps.append(step)
        self.changes.append(change)

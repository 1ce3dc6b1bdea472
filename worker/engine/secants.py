"""Steps from a curvature sketch, corrected by what earlier gradients have shown.

Each step costs one gradient and nothing else. Let s_j be the earlier steps and y_j the changes of the
gradient along them. The next step first moves within the span of the s_j to where the gradient should be
smallest, judging by the y_j, and then takes a Newton step with the sketch for what is left:

    γ = argmin ‖g - Yγ‖,    step = -Sγ - P⁻¹·(g - Yγ).

This is Anderson's acceleration (1965) in its multisecant form (Fang & Saad 2009). On a quadratic it does what
GMRES preconditioned by the sketch would do, at the price of one pass for each iteration. It minimises ‖g‖,
the quantity that B1 certifies.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from worker.engine.sketch import CurvatureSketch


@dataclass(slots=True)
class SecantSteps:
    """Proposes steps from gradients. One object belongs to one descent."""

    sketch: CurvatureSketch
    lam: float
    steps: list[Tensor] = field(default_factory=list)  # s_j, each (d,)
    changes: list[Tensor] = field(default_factory=list)  # y_j, each (d,)

    def propose(self, g: Tensor, product: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Return the next step from the gradient at the current point. (d,) -> (d,)

        `product` is v ↦ H·v over a sample of the rows, for what the sketch leaves out.
        """
        if not self.steps:
            return -self.sketch.solve(g, self.lam, product)
        changes, steps = torch.stack(self.changes, 1), torch.stack(self.steps, 1)  # (d, k)
        gamma: Tensor = torch.linalg.lstsq(changes, g[:, None]).solution
        return -(steps @ gamma)[:, 0] - self.sketch.solve(g - (changes @ gamma)[:, 0], self.lam, product)

    def learn(self, step: Tensor, change: Tensor) -> None:
        """Remember a step (d,) that was taken and the change of the gradient (d,) along it."""
        self.steps.append(step)
        self.changes.append(change)

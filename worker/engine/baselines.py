"""Published methods to stand beside ours: where they stop, and what their own bounds say there.

One Newton step is Guo et al. (2020); the capped steps and the bound before the run are those of trust-region
certified unlearning. Both are evaluated on our objectives, so B1 at their output is a second, proven figure.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from worker.engine.objective import Objective
from worker.engine.subproblem import Quadratic, cauchy, steihaug


@dataclass(frozen=True, slots=True)
class CappedSettings:
    """τ, the growth of the curvature estimate, and the trust-region constants of the published runs."""

    steps: int = 5
    tau: float = 0.8
    eta_accept: float = 0.1
    eta_expand: float = 0.9
    shrink: float = 0.5
    grow: float = 2.0
    initial_radius: float = 1.0


def newton_step(objective: Objective, w: Tensor, *, tolerance: float = 1e-12, limit: int = 1000) -> Tensor:
    """w - H⁻¹∇f(w), with the exact Hessian over all rows."""
    gradient = objective.gradient(w)
    quadratic = Quadratic(gradient, objective.hessian(w).product)
    return w + steihaug(quadratic, math.inf, tolerance=tolerance, limit=limit).step


def curvature_ceiling(objective: Objective, w: Tensor, *, iterations: int = 20, seed: int = 0) -> float:
    """Largest Hessian eigenvalue by power iteration: an estimate from below, as the published method uses."""
    generator = torch.Generator().manual_seed(seed)
    v = torch.randn(len(w), generator=generator, dtype=torch.float64).to(w.device)
    operator = objective.hessian(w)
    estimate = 0.0
    for _ in range(iterations):
        v = v / torch.linalg.vector_norm(v)
        image = operator.product(v)
        estimate = float(v @ image)
        v = image
    return estimate


def capped_steps(objective: Objective, w: Tensor, settings: CappedSettings, *, ceiling: float) -> Tensor:
    """Trust-region steps no longer than τ‖g‖/L: each is at most a gradient step, which is why few go far."""
    radius = settings.initial_radius
    value, gradient = objective.value_and_gradient(w)
    for _ in range(settings.steps):
        norm = float(torch.linalg.vector_norm(gradient))
        capped = min(radius, settings.tau * norm / ceiling)
        quadratic = Quadratic(gradient, objective.hessian(w).product)
        proposal = cauchy(quadratic, capped, tolerance=0.0, limit=1)
        trial_value, trial_gradient = objective.value_and_gradient(w + proposal.step)
        rho = (value - trial_value) / proposal.drop if proposal.drop > 0 else -math.inf
        if rho >= settings.eta_accept:
            w, value, gradient = w + proposal.step, trial_value, trial_gradient
        radius *= settings.grow if rho >= settings.eta_expand and proposal.boundary else 1.0
        radius *= settings.shrink if rho < settings.eta_accept else 1.0
    return w


def corollary_distance(
    *, gradient_norm: float, floor: float, ceiling: float, settings: CappedSettings, kappa: float = 0.5
) -> float:
    """Corollary 1's bound before the run, with the unknown gap f(w₀) - f(ŵ) replaced by ‖g₀‖²/(2μ).

    Each accepted step contracts the gap by 1 - η₁κτμ/L, and ‖w - ŵ‖ ≤ √(2·gap/μ).
    """
    contraction = 1 - settings.eta_accept * kappa * settings.tau * floor / ceiling
    gap = gradient_norm**2 / (2 * floor) * contraction**settings.steps
    return math.sqrt(2 * gap / floor)

"""The bounds of trust-region certified unlearning as formulas (docs/paper.md maps them to the paper)."""

import math
from collections.abc import Sequence


def gradient_bound(*, first: float, lipschitz: Sequence[float], radii: Sequence[float]) -> float:
    """Return U_t = ‖g₀‖ + L_max(t)·Σ Δ̄_s over the steps before t (Proposition 3). It never decreases.

    The paper calls this a bound before the run, although Δ̄_s ≤ τ‖g_s‖/L_s is known only at step s.

    >>> gradient_bound(first=1.0, lipschitz=[2.0, 4.0], radii=[0.5, 0.25])
    4.0
    """
    return first + max(lipschitz, default=0.0) * math.fsum(radii)


def blind_gradient_bound(*, first: float, tau: float, growth: float, steps: int) -> float:
    """Return what Proposition 3 gives before the run, with each radius replaced by its bound τU_s/L_s.

    U_t = ‖g₀‖ + L_max(t)·Σ τU_s/L_s with L_s = α_L^s·L₀. For α_L = 1 it is (1 + τ)^t·‖g₀‖.

    >>> blind_gradient_bound(first=1.0, tau=1.0, growth=1.0, steps=3)
    8.0
    """
    bounds: list[float] = [first]
    for t in range(1, steps + 1):
        reach = math.fsum(tau * bound / growth**s for s, bound in enumerate(bounds))
        bounds.append(first + growth ** (t - 1) * reach)
    return bounds[-1]


def reduction_floor(
    *,
    estimate: float,
    radius: float,
    gradient_bound: float,
    curvature: float,
    gradient_error: float,
    product_error: float,
    inverse_error: float,
) -> float:
    """Return PR_t of Theorem 2, the lower bound on the predicted reduction.

    It is the model's estimate less ε_g·Δ̄, ½ε_H·Δ̄², ε_iHVP·U² and (‖H‖ + λ)·Δ̄·ε_iHVP·U. `curvature` is ‖H‖
    + λ.

    >>> reduction_floor(estimate=1.0, radius=2.0, gradient_bound=3.0, curvature=4.0, gradient_error=0.01,
    ...     product_error=0.1, inverse_error=0.001) == 1.0 - 0.02 - 0.2 - (0.009 + 0.024)
    True
    """
    step_error = inverse_error * gradient_bound**2 + curvature * radius * inverse_error * gradient_bound
    return max(0.0, estimate - gradient_error * radius - 0.5 * product_error * radius**2 - step_error)


def corollary_distance(
    *, first: float, floor: float, ceiling: float, counted: int, accept: float, kappa: float, tau: float
) -> float:
    """Return Δ of Corollary 1, with the unknown gap f(w₀) - f(ŵ) replaced by the larger ‖g₀‖²/(2μ).

    Each counted step contracts the gap by 1 - η₁κτμ/L, and ‖w - ŵ‖ ≤ √(2·gap/μ).

    >>> corollary_distance(first=1.0, floor=0.5, ceiling=1.0, counted=0, accept=0.1, kappa=1.0, tau=1.0)
    2.000000000002
    """
    if not (floor > 0 and math.isfinite(first) and math.isfinite(ceiling)):
        return math.inf
    contraction = max(0.0, 1 - accept * kappa * tau * floor / ceiling) if ceiling > 0 else 1.0
    return first / floor * math.sqrt(contraction**counted) * (1 + 1e-12)

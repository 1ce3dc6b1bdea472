"""Bounds on the distance to a minimiser, computed from the gradient norm at a point (B1 and B2)."""

import math


def strongly_convex_distance(*, gradient_norm: float, rounding: float, floor: float) -> float:
    """Return the bound B1, ‖w - ŵ‖ ≤ (‖∇f(w)‖ + e)/λ, for an f that is λ-strongly convex everywhere.

    `gradient_norm` is the computed ‖∇f(w)‖, `rounding` is e and `floor` is λ. Strong convexity gives λ‖w -
    ŵ‖² ≤ ⟨∇f(w), w - ŵ⟩ ≤ ‖∇f(w)‖·‖w - ŵ‖ (docs/maths.md, section 2). The result is rounded up: four ulps
    cover the three roundings of the sum, the quotient and the final product.

    >>> strongly_convex_distance(gradient_norm=1e-6, rounding=0.0, floor=1e-4) >= 1e-2
    True
    """
    if not floor > 0:
        raise ValueError(f"the curvature floor must be positive, got {floor!r}")
    if not (gradient_norm >= 0 and rounding >= 0):
        return math.inf
    return (gradient_norm + rounding) / floor * (1 + 2**-50)


def reachable(*, target: float, rounding: float, floor: float) -> bool:
    """Return whether rounding alone leaves room for the target distance, that is whether Δ* > e/λ.

    >>> reachable(target=1e-2, rounding=1e-12, floor=1e-4), reachable(target=1e-9, rounding=1e-12, floor=1e-4)
    (True, False)
    """
    return target > strongly_convex_distance(gradient_norm=0.0, rounding=rounding, floor=floor)


def kantorovich(*, gradient_norm: float, rounding: float, floor: float, lipschitz: float) -> float:
    """Return h = M·G/μ₀² with G = ‖∇f(w)‖ + e, rounded up. It is infinite without a positive floor μ₀.

    `floor` is μ₀ ≤ λ_min(∇²f(w)) and `lipschitz` is M, a Lipschitz constant of ∇²f.

    >>> kantorovich(gradient_norm=0.01, rounding=0.0, floor=1.0, lipschitz=10.0)
    0.10000000000000...
    """
    if not (floor > 0 and gradient_norm >= 0 and rounding >= 0 and lipschitz >= 0):
        return math.inf
    return lipschitz * (gradient_norm + rounding) / floor**2 * (1 + 2**-49)


def kantorovich_distance(*, gradient_norm: float, rounding: float, floor: float, lipschitz: float) -> float:
    """Return the bound B2, ‖w - ŵ‖ ≤ 2G/(μ₀·(1 + √(1 - 2h))). It is infinite unless h < 1/2.

    This is the Newton–Kantorovich theorem with μ₀ ≤ λ_min(∇²f(w)) and ∇²f M-Lipschitz on B(w, 2G/μ₀)
    (docs/maths.md, section 10). The formula does not cancel, and the result is rounded up: h is rounded up,
    so 1 - 2h and its root are too small and Δ is too large. The last factor covers the remaining roundings.

    >>> kantorovich_distance(gradient_norm=0.01, rounding=0.0, floor=1.0, lipschitz=10.0)
    0.01055728...
    """
    h = kantorovich(gradient_norm=gradient_norm, rounding=rounding, floor=floor, lipschitz=lipschitz)
    if not h < 0.5:
        return math.inf
    root = math.sqrt(max(0.0, 1 - 2 * h - 2**-52)) * (1 - 2**-51)
    return 2 * (gradient_norm + rounding) / (floor * (1 + root)) * (1 + 2**-49)


def needed_floor(*, gradient: float, lipschitz: float, target: float) -> float:
    """Return the smallest μ₀ with which B2 certifies the distance `target`, given G and M.

    Δ is the smaller root of (M/2)t² - μ₀t + G. The root is real for μ₀ ≥ √(2MG). It is at most the target for
    μ₀ ≥ G/t + Mt/2 at t = target, unless the target lies beyond the double root √(2G/M).

    >>> needed_floor(gradient=1e-8, lipschitz=100.0, target=1e-6)
    0.01005
    """
    real = math.sqrt(2 * lipschitz * gradient)
    if lipschitz * target**2 >= 2 * gradient:
        return real
    return max(real, gradient / target + lipschitz * target / 2)

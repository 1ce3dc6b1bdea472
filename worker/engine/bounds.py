"""From a gradient to a distance."""

import math


def strongly_convex_distance(*, gradient_norm: float, rounding: float, floor: float) -> float:
    """B1: ‖w - ŵ‖ ≤ (‖∇f(w)‖ + e)/λ for f that is λ-strongly convex everywhere; rounded up.

    Strong convexity gives λ‖w - ŵ‖² ≤ ⟨∇f(w), w - ŵ⟩ ≤ ‖∇f(w)‖·‖w - ŵ‖. Three roundings (the sum, the
    quotient, the product below) are covered by four ulps.

    >>> strongly_convex_distance(gradient_norm=1e-6, rounding=0.0, floor=1e-4) >= 1e-2
    True
    """
    if not floor > 0:
        raise ValueError(f"the curvature floor must be positive, got {floor!r}")
    if not (gradient_norm >= 0 and rounding >= 0):
        return math.inf
    return (gradient_norm + rounding) / floor * (1 + 2**-50)


def reachable(*, target: float, rounding: float, floor: float) -> bool:
    """Whether rounding alone leaves room for the target: Δ* > e/λ.

    >>> reachable(target=1e-2, rounding=1e-12, floor=1e-4), reachable(target=1e-9, rounding=1e-12, floor=1e-4)
    (True, False)
    """
    return target > strongly_convex_distance(gradient_norm=0.0, rounding=rounding, floor=floor)


def kantorovich(*, gradient_norm: float, rounding: float, floor: float, lipschitz: float) -> float:
    """h = M·G/μ₀² with G = ‖∇f(w)‖ + e, rounded up; infinite without a positive floor.

    >>> kantorovich(gradient_norm=0.01, rounding=0.0, floor=1.0, lipschitz=10.0)
    0.10000000000000...
    """
    if not (floor > 0 and gradient_norm >= 0 and rounding >= 0 and lipschitz >= 0):
        return math.inf
    return lipschitz * (gradient_norm + rounding) / floor**2 * (1 + 2**-49)


def kantorovich_distance(*, gradient_norm: float, rounding: float, floor: float, lipschitz: float) -> float:
    """B2: ‖w - ŵ‖ ≤ 2G/(μ₀·(1 + √(1 - 2h))); infinite unless h < 1/2; rounded up, free of cancellation.

    Newton & Kantorovich: μ₀ ≤ λ_min(∇²f(w)), ∇²f M-Lipschitz on B(w, 2G/μ₀). With h rounded up, 1 - 2h is too
    small, hence the root, hence Δ too large; the last factor covers the rest.

    >>> kantorovich_distance(gradient_norm=0.01, rounding=0.0, floor=1.0, lipschitz=10.0)
    0.01055728...
    """
    h = kantorovich(gradient_norm=gradient_norm, rounding=rounding, floor=floor, lipschitz=lipschitz)
    if not h < 0.5:
        return math.inf
    root = math.sqrt(max(0.0, 1 - 2 * h - 2**-52)) * (1 - 2**-51)
    return 2 * (gradient_norm + rounding) / (floor * (1 + root)) * (1 + 2**-49)


def needed_floor(*, gradient: float, lipschitz: float, target: float) -> float:
    """The least μ₀ with which B2 certifies `target`, from G and M.

    Δ is the smaller root of (M/2)t² - μ₀t + G. It is real for μ₀ ≥ √(2MG), and within the target for
    μ₀ ≥ G/t + Mt/2 at t = target, unless the target lies beyond the double root √(2G/M).

    >>> needed_floor(gradient=1e-8, lipschitz=100.0, target=1e-6)
    0.01005
    """
    real = math.sqrt(2 * lipschitz * gradient)
    if lipschitz * target**2 >= 2 * gradient:
        return real
    return max(real, gradient / target + lipschitz * target / 2)

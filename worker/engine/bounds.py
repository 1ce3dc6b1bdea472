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

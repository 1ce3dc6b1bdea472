"""Solvers of the trust-region subproblem: minimise m(p) = gᵀp + ½pᵀHp over ‖p‖ ≤ radius."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Quadratic:
    """The quadratic model at the current point, with an optional preconditioner for conjugate gradients."""

    gradient: Tensor  # (d,)
    product: Callable[[Tensor], Tensor]  # (d,) -> (d,)
    inverse: Callable[[Tensor], Tensor] | None = None  # (d,) -> (d,), symmetric positive definite

    def precondition(self, r: Tensor) -> tuple[Tensor, float]:
        """Return z = M⁻¹r and rᵀz > 0, or r itself if rounding leaves no positive rᵀz.

        An inverse is positive definite only in exact arithmetic. On badly scaled features, the one built from
        float32 rows can underflow to rᵀz = 0, overflow, or round to a negative rᵀz, and conjugate gradients
        would divide by it. Falling back to r always gives a descent direction.
        """
        if self.inverse is not None:
            z = self.inverse(r)
            rz = float(r @ z)
            if math.isfinite(rz) and rz > 0:
                return z, rz
        return r, float(r @ r)


@dataclass(frozen=True, slots=True)
class Proposal:
    """A proposed step, the decrease m(0) - m(p) it predicts, and its cost."""

    step: Tensor  # (d,)
    drop: float
    residual: float  # ‖g + Hp‖
    boundary: bool
    products: int


class Subproblem(Protocol):
    """A solver of the subproblem. It stops at residual ‖g + Hp‖ ≤ `tolerance` or after `limit` products."""

    def __call__(self, quadratic: Quadratic, radius: float, *, tolerance: float, limit: int) -> Proposal:
        """Return a step within the radius."""
        ...


def steihaug(quadratic: Quadratic, radius: float, *, tolerance: float, limit: int) -> Proposal:
    """Run conjugate gradients until the tolerance, negative curvature or the region's edge.

    Steihaug (1983); Nocedal & Wright 2e, alg. 7.2. The region stays a Euclidean ball under preconditioning.
    ‖p‖ then need not grow in every iteration, but m falls in every one, so the point where the path first
    leaves the ball is still a descent step. If rᵀz is zero or not finite, no further direction can be
    computed and the solve returns the current p.
    """
    p = torch.zeros_like(quadratic.gradient)
    r = quadratic.gradient.clone()  # g + Hp throughout
    z, rz = quadratic.precondition(r)
    d = -z
    products = 0
    while products < limit and _norm(r) > tolerance and rz > 0 and math.isfinite(rz):
        hd = quadratic.product(d)
        products += 1
        curvature = float(d @ hd)
        if not math.isfinite(curvature):
            break
        alpha = rz / curvature if curvature > 0 else math.inf
        if not math.isfinite(alpha) or _norm(p + alpha * d) >= radius:
            tau = _to_boundary(p, d, radius)
            return _proposal(quadratic, p + tau * d, r + tau * hd, boundary=True, products=products)
        p, r = p + alpha * d, r + alpha * hd
        previous = rz
        z, rz = quadratic.precondition(r)
        d = (rz / previous) * d - z
    return _proposal(quadratic, p, r, boundary=False, products=products)


def cauchy(quadratic: Quadratic, radius: float, *, tolerance: float, limit: int) -> Proposal:  # noqa: ARG001
    """Return the minimiser along steepest descent in the region (Nocedal & Wright 2e, eq. 4.11–4.12)."""
    d = -quadratic.gradient
    hd = quadratic.product(d)
    curvature, slope, length = float(d @ hd), -float(quadratic.gradient @ d), _norm(d)
    edge = radius / length if length > 0 else 0.0
    tau = min(edge, slope / curvature) if curvature > 0 else edge
    return _proposal(quadratic, tau * d, quadratic.gradient + tau * hd, boundary=tau == edge, products=1)


def _proposal(quadratic: Quadratic, p: Tensor, r: Tensor, *, boundary: bool, products: int) -> Proposal:
    # With r = g + Hp, m(p) = gᵀp + ½pᵀ(r - g) = ½pᵀ(g + r)
    drop = -0.5 * float(p @ (quadratic.gradient + r))
    return Proposal(step=p, drop=drop, residual=_norm(r), boundary=boundary, products=products)


def _to_boundary(p: Tensor, d: Tensor, radius: float) -> float:
    """Return τ ≥ 0 with ‖p + τd‖ = radius, from the form of the root that does not cancel.

    Lengths are taken relative to the radius and to ‖d‖, so that no square overflows or underflows.
    """
    length = _norm(d)
    if not (math.isfinite(radius) and math.isfinite(length) and length > 0):
        return 0.0
    unit = d / length
    inside = p / radius
    b, c = float(inside @ unit), max(0.0, 1 - float(inside @ inside))
    root = math.sqrt(b * b + c)
    share = c / (b + root) if b > 0 else root - b
    return share * (radius / length)


def _norm(v: Tensor) -> float:
    return float(torch.linalg.vector_norm(v))

"""Which way to step: minimise m(p) = gᵀp + ½pᵀHp over ‖p‖ ≤ radius."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Quadratic:
    """The model around the current point, and an approximate inverse of H to steer conjugate gradients."""

    gradient: Tensor  # (d,)
    product: Callable[[Tensor], Tensor]  # (d,) -> (d,)
    inverse: Callable[[Tensor], Tensor] | None = None  # (d,) -> (d,), symmetric positive definite

    def precondition(self, r: Tensor) -> Tensor:
        return r if self.inverse is None else self.inverse(r)


@dataclass(frozen=True, slots=True)
class Proposal:
    """A step, the drop m(0) - m(p) it promises, and what it took."""

    step: Tensor  # (d,)
    drop: float
    residual: float  # ‖g + Hp‖
    boundary: bool
    products: int


class Subproblem(Protocol):
    def __call__(self, quadratic: Quadratic, radius: float, *, tolerance: float, limit: int) -> Proposal: ...


def steihaug(quadratic: Quadratic, radius: float, *, tolerance: float, limit: int) -> Proposal:
    """Conjugate gradients, stopped at the region's edge (Steihaug 1983; Nocedal & Wright 2e, alg. 7.2).

    The region stays a Euclidean ball under preconditioning. Then ‖p‖ need not grow at every iteration, but
    m falls at every one, so the point where the path first leaves the ball is still a descent step.
    """
    p = torch.zeros_like(quadratic.gradient)
    r = quadratic.gradient.clone()  # g + Hp throughout
    z = quadratic.precondition(r)
    d = -z
    rz = float(r @ z)
    products = 0
    while products < limit and _norm(r) > tolerance:
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
        z = quadratic.precondition(r)
        rz, previous = float(r @ z), rz
        d = (rz / previous) * d - z
    return _proposal(quadratic, p, r, boundary=False, products=products)


def cauchy(quadratic: Quadratic, radius: float, *, tolerance: float, limit: int) -> Proposal:  # noqa: ARG001
    """The exact minimiser along steepest descent inside the region (Nocedal & Wright 2e, eq. 4.11–4.12)."""
    d = -quadratic.gradient
    hd = quadratic.product(d)
    curvature, slope, length = float(d @ hd), -float(quadratic.gradient @ d), _norm(d)
    edge = radius / length if length > 0 else 0.0
    tau = min(edge, slope / curvature) if curvature > 0 else edge
    return _proposal(quadratic, tau * d, quadratic.gradient + tau * hd, boundary=tau == edge, products=1)


def _proposal(quadratic: Quadratic, p: Tensor, r: Tensor, *, boundary: bool, products: int) -> Proposal:
    # with r = g + Hp, m(p) = gᵀp + ½pᵀ(r - g) = ½pᵀ(g + r)
    drop = -0.5 * float(p @ (quadratic.gradient + r))
    return Proposal(step=p, drop=drop, residual=_norm(r), boundary=boundary, products=products)


def _to_boundary(p: Tensor, d: Tensor, radius: float) -> float:
    """τ ≥ 0 with ‖p + τd‖ = radius; the root in the form that does not cancel."""
    a, b, c = float(d @ d), float(p @ d), radius**2 - float(p @ p)
    root = math.sqrt(max(0.0, b * b + a * c))
    if b > 0:
        return max(0.0, c) / (b + root)
    return (root - b) / a if a > 0 else 0.0


def _norm(v: Tensor) -> float:
    return float(torch.linalg.vector_norm(v))

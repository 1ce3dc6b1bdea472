"""Which way to step: minimise m(p) = gᵀp + ½pᵀHp over ‖p‖_M ≤ radius, M diagonal (default: identity)."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Quadratic:
    """The model around the current point. `metric` is M's diagonal: preconditioner and norm of the region."""

    gradient: Tensor  # (d,)
    product: Callable[[Tensor], Tensor]  # (d,) -> (d,)
    metric: Tensor | None = None  # (d,), positive

    def norm(self, p: Tensor) -> float:
        weighted = p if self.metric is None else p * self.metric.sqrt()
        return float(torch.linalg.vector_norm(weighted))

    def precondition(self, r: Tensor) -> Tensor:
        return r if self.metric is None else r / self.metric


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
    """Conjugate gradients, stopped at the region's edge (Steihaug 1983; Nocedal & Wright 2e, alg. 7.2)."""
    p = torch.zeros_like(quadratic.gradient)
    r = quadratic.gradient.clone()  # g + Hp throughout
    z = quadratic.precondition(r)
    d = -z
    rz = float(r @ z)
    products = 0
    while products < limit and float(torch.linalg.vector_norm(r)) > tolerance:
        hd = quadratic.product(d)
        products += 1
        curvature = float(d @ hd)
        if not math.isfinite(curvature):
            break
        alpha = rz / curvature if curvature > 0 else math.inf
        if not math.isfinite(alpha) or quadratic.norm(p + alpha * d) >= radius:
            tau = _to_boundary(quadratic, p, d, radius)
            return _proposal(quadratic, p + tau * d, r + tau * hd, boundary=True, products=products)
        p, r = p + alpha * d, r + alpha * hd
        z = quadratic.precondition(r)
        rz, previous = float(r @ z), rz
        d = (rz / previous) * d - z
    return _proposal(quadratic, p, r, boundary=False, products=products)


def cauchy(quadratic: Quadratic, radius: float, *, tolerance: float, limit: int) -> Proposal:  # noqa: ARG001
    """The exact minimiser along steepest descent inside the region (Nocedal & Wright 2e, eq. 4.11–4.12)."""
    d = -quadratic.precondition(quadratic.gradient)
    hd = quadratic.product(d)
    curvature, slope, length = float(d @ hd), -float(quadratic.gradient @ d), quadratic.norm(d)
    edge = radius / length if length > 0 else 0.0
    tau = min(edge, slope / curvature) if curvature > 0 else edge
    return _proposal(quadratic, tau * d, quadratic.gradient + tau * hd, boundary=tau == edge, products=1)


def _proposal(quadratic: Quadratic, p: Tensor, r: Tensor, *, boundary: bool, products: int) -> Proposal:
    # with r = g + Hp, m(p) = gᵀp + ½pᵀ(r - g) = ½pᵀ(g + r)
    drop = -0.5 * float(p @ (quadratic.gradient + r))
    residual = float(torch.linalg.vector_norm(r))
    return Proposal(step=p, drop=drop, residual=residual, boundary=boundary, products=products)


def _to_boundary(quadratic: Quadratic, p: Tensor, d: Tensor, radius: float) -> float:
    """τ ≥ 0 with ‖p + τd‖_M = radius; the root in the form that does not cancel."""
    weighted = d if quadratic.metric is None else d * quadratic.metric
    a, b, c = float(d @ weighted), float(p @ weighted), radius**2 - quadratic.norm(p) ** 2
    root = math.sqrt(max(0.0, b * b + a * c))
    if b > 0:
        return max(0.0, c) / (b + root)
    return (root - b) / a if a > 0 else 0.0

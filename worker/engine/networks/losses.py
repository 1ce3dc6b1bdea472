"""Losses convex in the logits, row-major: what the objective needs of each, and how it rounds."""

import math
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from worker.engine import validation
from worker.engine.rounding import RIDGE_LINK, UNIT, Link, softmax_link


class Residual(NamedTuple):
    loss: Tensor  # (), summed over rows
    q: Tensor  # (c, outputs): ∂ℓ/∂z
    stiffness: Tensor  # (c,): at least ‖∂²ℓ/∂z²‖₂ at the computed logits


class Loss(Protocol):
    @property
    def outputs(self) -> int: ...

    @property
    def link(self) -> Link:
        """How the residual's own evaluation rounds; its slope is the residual's Lipschitz constant."""
        ...

    def check(self, y: Tensor, first: int) -> None:
        """Raise EngineInputError unless the targets (c,) of the chunk from row `first` are this loss's."""
        ...

    def each(self, z: Tensor, y: Tensor) -> Tensor:
        """Logits (c, outputs), targets (c,) -> losses (c,), differentiable."""
        ...

    def residual(self, z: Tensor, y: Tensor) -> Residual: ...

    def curve(self, z: Tensor, u: Tensor) -> Tensor:
        """(∂²ℓ/∂z²)·u row by row: (c, outputs), (c, outputs) -> (c, outputs)."""
        ...


class CrossEntropy:
    """ℓ = log Σ_c exp z_c - z_y, labels 0 … classes-1."""

    def __init__(self, classes: int) -> None:
        validation.check_classes(classes)
        self.outputs = classes
        # ∂²ℓ/∂z² = diag p - ppᵀ has no eigenvalue above 1/2 (Gershgorin: 2p(1-p))
        self.link = Link(slope=0.5, absolute=softmax_link(classes).absolute)

    def check(self, y: Tensor, first: int) -> None:
        validation.check_labels(y, self.outputs, first)

    def each(self, z: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(z, y.long(), reduction="none")

    def residual(self, z: Tensor, y: Tensor) -> Residual:
        labels = y.long()[:, None]
        shifted = z - z.amax(1, keepdim=True)
        own = shifted.gather(1, labels).sum()
        powers = shifted.exp()
        mass = powers.sum(1, keepdim=True)
        p = powers / mass
        stiffness = (2 * p * (1 - p)).amax(1) + max(64, 4 * self.link.absolute) * UNIT
        q = p.scatter_add(1, labels, p.new_full((len(p), 1), -1.0))
        return Residual(mass.log().sum() - own, q, stiffness)

    def curve(self, z: Tensor, u: Tensor) -> Tensor:
        p = torch.softmax(z, 1)
        bent = p * u
        return bent - p * bent.sum(1, keepdim=True)


class HalfSquared:
    """ℓ = ½(z - y)², one real output."""

    outputs = 1
    link = RIDGE_LINK

    def check(self, y: Tensor, first: int) -> None:
        validation.check_real(y, first)

    def each(self, z: Tensor, y: Tensor) -> Tensor:
        return (z[:, 0] - y.to(z.dtype)).square() / 2

    def residual(self, z: Tensor, y: Tensor) -> Residual:
        q = z - y.to(z.dtype)[:, None]
        return Residual(q.square().sum() / 2, q, z.new_ones(len(z)))

    def curve(self, z: Tensor, u: Tensor) -> Tensor:  # noqa: ARG002
        return u


def residual_error(loss: Loss, residual: Residual, logit_error: Tensor) -> Tensor:
    """(c,): ‖q̂ - q‖ for logits computed to within `logit_error` (c,).

    Between the computed and the true logits every p moves by a factor of e^{±2E} at most, so p(1-p) by one
    of e^{4E} ≤ 1 + 8E while E ≤ 0.3; beyond that the constant slope serves.
    """
    near = residual.stiffness * (1 + 8 * logit_error)
    slope = torch.where(logit_error <= 0.3, near, math.inf).clamp(max=loss.link.slope)
    size = torch.linalg.vector_norm(residual.q, dim=1)
    error: Tensor = slope * logit_error + UNIT * (loss.link.absolute + size)
    return error

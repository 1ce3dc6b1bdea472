"""Losses that are convex in the logits, row-major, with their derivatives and rounding errors."""

import math
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from worker.engine import validation
from worker.engine.rounding import RIDGE_LINK, UNIT, Link, softmax_link


class Residual(NamedTuple):
    """Summed loss, residual q = ∂ℓ/∂z and a bound on the curvature of each row."""

    loss: Tensor  # (), summed over rows
    q: Tensor  # (c, outputs): ∂ℓ/∂z
    stiffness: Tensor  # (c,): upper bound on ‖∂²ℓ/∂z²‖₂ at the computed logits


class Loss(Protocol):
    """A loss that is convex in the logits."""

    @property
    def outputs(self) -> int:
        """Number of logits per row."""
        ...

    @property
    def link(self) -> Link:
        """Rounding error of the residual. Its slope is the Lipschitz constant of the residual."""
        ...

    def check(self, y: Tensor, first: int) -> None:
        """Raise EngineInputError unless the loss accepts the targets (c,).

        `first` is the index of the first row of the chunk.
        """
        ...

    def each(self, z: Tensor, y: Tensor) -> Tensor:
        """Return the loss of each row, differentiably. (c, outputs), (c,) -> (c,)"""
        ...

    def residual(self, z: Tensor, y: Tensor) -> Residual:
        """Return summed loss, residual and stiffness. (c, outputs), (c,) -> Residual"""
        ...

    def curve(self, z: Tensor, u: Tensor) -> Tensor:
        """Return (∂²ℓ/∂z²)·u row by row. (c, outputs), (c, outputs) -> (c, outputs)"""
        ...

    def curve_root(self, z: Tensor, u: Tensor) -> Tensor:
        """Return L·u row by row, where L·Lᵀ = ∂²ℓ/∂z². (c, outputs), (c, outputs) -> (c, outputs)"""
        ...


class CrossEntropy:
    """Cross-entropy of a softmax: ℓ = log Σ_c exp z_c - z_y with labels 0 … classes-1."""

    def __init__(self, classes: int) -> None:
        validation.check_classes(classes)
        self.outputs = classes
        # Gershgorin: the eigenvalues of diag p - ppᵀ are at most max 2p(1-p) ≤ 1/2.
        self.link = Link(slope=0.5, absolute=softmax_link(classes).absolute)

    def check(self, y: Tensor, first: int) -> None:
        """Raise EngineInputError unless every target is a whole number in 0 … classes-1."""
        validation.check_labels(y, self.outputs, first)

    def each(self, z: Tensor, y: Tensor) -> Tensor:
        """Return the loss of each row, differentiably. (c, classes), (c,) -> (c,)"""
        return functional.cross_entropy(z, y.long(), reduction="none")

    def residual(self, z: Tensor, y: Tensor) -> Residual:
        """Return summed loss, q = p - e_y and max 2p(1-p) with room for its rounding."""
        labels = y.long()[:, None]
        centred = z - z.amax(1, keepdim=True)
        own = centred.gather(1, labels).sum()
        powers = centred.exp()
        mass = powers.sum(1, keepdim=True)
        p = powers / mass
        stiffness = (2 * p * (1 - p)).amax(1) + max(64, 4 * self.link.absolute) * UNIT
        q = p.scatter_add(1, labels, p.new_full((len(p), 1), -1.0))
        return Residual(mass.log().sum() - own, q, stiffness)

    def curve(self, z: Tensor, u: Tensor) -> Tensor:
        """Return (diag p - ppᵀ)·u row by row. (c, classes), (c, classes) -> (c, classes)"""
        p = torch.softmax(z, 1)
        bent = p * u
        return bent - p * bent.sum(1, keepdim=True)

    def curve_root(self, z: Tensor, u: Tensor) -> Tensor:
        """Return (diag √p - p√pᵀ)·u row by row. (c, classes), (c, classes) -> (c, classes)"""
        p = torch.softmax(z, 1)
        bent = p.sqrt() * u
        return bent - p * bent.sum(1, keepdim=True)


class HalfSquared:
    """Half the squared error: ℓ = ½(z - y)² with one real output."""

    outputs = 1
    link = RIDGE_LINK

    def check(self, y: Tensor, first: int) -> None:
        """Raise EngineInputError unless every target is finite."""
        validation.check_real(y, first)

    def each(self, z: Tensor, y: Tensor) -> Tensor:
        """Return the loss of each row, differentiably. (c, 1), (c,) -> (c,)"""
        return (z[:, 0] - y.to(z.dtype)).square() / 2

    def residual(self, z: Tensor, y: Tensor) -> Residual:
        """Return summed loss, q = z - y and a stiffness of 1."""
        q = z - y.to(z.dtype)[:, None]
        return Residual(q.square().sum() / 2, q, z.new_ones(len(z)))

    def curve(self, z: Tensor, u: Tensor) -> Tensor:  # noqa: ARG002
        """Return u: the second derivative is 1. (c, 1), (c, 1) -> (c, 1)"""
        return u

    def curve_root(self, z: Tensor, u: Tensor) -> Tensor:  # noqa: ARG002
        """Return u: the second derivative is 1. (c, 1), (c, 1) -> (c, 1)"""
        return u


def residual_error(loss: Loss, residual: Residual, logit_error: Tensor) -> Tensor:
    """Bound ‖q̂ - q‖ for logits computed to within `logit_error` (c,). -> (c,)

    Between the computed and the true logits, every p changes by at most a factor e^{±2E}, so p(1-p) changes
    by at most e^{4E} ≤ 1 + 8E while E ≤ 0.3. Beyond that the constant slope is used.
    """
    near = residual.stiffness * (1 + 8 * logit_error)
    slope = torch.where(logit_error <= 0.3, near, math.inf).clamp(max=loss.link.slope)
    size = torch.linalg.vector_norm(residual.q, dim=1)
    error: Tensor = slope * logit_error + UNIT * (loss.link.absolute + size)
    return error

"""The interface between the solver and an objective.

f(w) = (1/r)·Σ_i ℓ(w; x_i, y_i) + (λ/2)·‖w - anchor‖²
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from torch import Tensor

from worker.engine.rows import Rows

Reduce: TypeAlias = Callable[[Tensor], Tensor]
"""Sums a tensor over all ranks. With one rank it is the identity."""


def no_reduction(tensor: Tensor) -> Tensor:
    """Return the tensor unchanged: the `Reduce` of a single rank."""
    return tensor


@dataclass(frozen=True, slots=True)
class CertifiedGradient:
    """The computed ‖∇f(w)‖ and a proven bound on its rounding error."""

    norm: float
    rounding: float


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Result of one pass over all rows at one point. In single precision `rounding` is infinite."""

    value: float
    gradient: Tensor  # (d,)
    norm: float
    rounding: float
    scale: float  # bound on the mean gradient length of a row, the scale of rounding errors
    passes: int = 1  # over all rows, with those that a modelled rounding bound takes


@dataclass(frozen=True, slots=True)
class Sampling:
    """Which rows a Hessian is formed from.

    Either `rows` of them drawn with `seed`, in float32, or all in float64 if `rows` is None.

    The draw is reproducible and plays no part in privacy: it only affects the path to a point whose
    certificate is computed from every row.
    """

    rows: int | None = None
    seed: int = 0


EXACT = Sampling()


@dataclass(frozen=True, slots=True)
class ApproximateInverse:
    """A symmetric positive definite map r ↦ ≈ H⁻¹·r, and the passes over the rows it took to build."""

    apply: Callable[[Tensor], Tensor]  # (d,) -> (d,)
    passes: float


class HessianOperator(Protocol):
    """The map v ↦ H·v at a fixed point, possibly over a sample of the rows."""

    @property
    def fraction(self) -> float:
        """Rows touched by one product, as a fraction of all rows."""
        ...

    def product(self, v: Tensor) -> Tensor:
        """Return H·v. (d,) -> (d,)"""
        ...

    def approximate_inverse(self, rank: int) -> ApproximateInverse | None:
        """Return a preconditioner built from at most `rank` feature directions, or None if there is none."""
        ...


class Objective(Protocol):
    """A smooth objective that is `curvature_floor`-strongly convex everywhere.

    The floor is proven, not estimated. A floor of 0 means that nothing is proven, and a minimiser of such an
    objective certifies no distance by B1.
    """

    @property
    def dimension(self) -> int:
        """Number of parameters, d."""
        ...

    @property
    def rows(self) -> Rows:
        """The rows the mean is taken over."""
        ...

    @property
    def anchor(self) -> Tensor:
        """The centre of the regulariser, (d,)."""
        ...

    @property
    def lam(self) -> float:
        """λ, the weight of the regulariser."""
        ...

    @property
    def curvature_floor(self) -> float:
        """Proven lower bound on the curvature everywhere, or 0."""
        ...

    def evaluate(self, w: Tensor, *, single: bool = False) -> Evaluation:
        """Return value, gradient and rounding bound from one pass, in float32 if `single`."""
        ...

    def value(self, w: Tensor) -> float:
        """Return f(w)."""
        ...

    def gradient(self, w: Tensor) -> Tensor:
        """Return ∇f(w). (d,) -> (d,)"""
        ...

    def value_and_gradient(self, w: Tensor) -> tuple[float, Tensor]:
        """Return f(w) and ∇f(w)."""
        ...

    def certified_gradient(self, w: Tensor) -> CertifiedGradient:
        """Return ‖∇f(w)‖ with a proven bound on its rounding error."""
        ...

    def hessian(self, w: Tensor, sampling: Sampling = EXACT) -> HessianOperator:
        """Return the Hessian operator at w, exact or over a sample."""
        ...

    def hvp(self, w: Tensor, v: Tensor) -> Tensor:
        """Return the exact product ∇²f(w)·v. (d,), (d,) -> (d,)"""
        ...


class EvaluatedObjective(ABC):
    """What follows from `evaluate` in every objective."""

    @abstractmethod
    def evaluate(self, w: Tensor, *, single: bool = False) -> Evaluation:
        """Return value, gradient and rounding bound from one pass, in float32 if `single`."""

    def value(self, w: Tensor) -> float:
        """Return f(w)."""
        return self.evaluate(w).value

    def gradient(self, w: Tensor) -> Tensor:
        """Return ∇f(w). (d,) -> (d,)"""
        return self.evaluate(w).gradient

    def value_and_gradient(self, w: Tensor) -> tuple[float, Tensor]:
        """Return f(w) and ∇f(w) from one pass."""
        evaluation = self.evaluate(w)
        return evaluation.value, evaluation.gradient

    def certified_gradient(self, w: Tensor) -> CertifiedGradient:
        """Return ‖∇f(w)‖ with the bound on its rounding error, from a float64 pass."""
        evaluation = self.evaluate(w)
        return CertifiedGradient(norm=evaluation.norm, rounding=evaluation.rounding)

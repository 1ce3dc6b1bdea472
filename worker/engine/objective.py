"""What the solver needs of an objective, and nothing else.

f(w) = (1/r)·Σ_i ℓ(w; x_i, y_i) + (λ/2)·‖w - anchor‖²
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from torch import Tensor

from worker.engine.rows import Rows

Reduce: TypeAlias = Callable[[Tensor], Tensor]
"""Sums a tensor over all ranks; the identity when there is one."""


@dataclass(frozen=True, slots=True)
class CertifiedGradient:
    """‖∇f(w)‖ as computed, and a proven bound on how far rounding put it from the truth."""

    norm: float
    rounding: float


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One pass over all rows at one point; in single precision `rounding` is infinite."""

    value: float
    gradient: Tensor  # (d,)
    norm: float
    rounding: float
    scale: float  # mean length of a row's gradient, at most: what rounding is relative to


@dataclass(frozen=True, slots=True)
class Sampling:
    """Which rows a Hessian is formed from: `rows` drawn by `seed`, in float32; all, in float64, if None.

    The draw is reproducible and carries no privacy: a sample only shapes the path to a point whose
    certificate is computed from every row.
    """

    rows: int | None = None
    seed: int = 0


EXACT = Sampling()


@dataclass(frozen=True, slots=True)
class ApproximateInverse:
    """r ↦ about H⁻¹·r, symmetric positive definite, and the passes over the rows it took to build."""

    apply: Callable[[Tensor], Tensor]  # (d,) -> (d,)
    passes: float


class HessianOperator(Protocol):
    """v ↦ H·v at a fixed point, perhaps over a sample of the rows."""

    @property
    def fraction(self) -> float:
        """Rows touched by one product, as a share of all rows."""
        ...

    def product(self, v: Tensor) -> Tensor:  # (d,) -> (d,)
        ...

    def approximate_inverse(self, rank: int) -> ApproximateInverse | None:
        """A preconditioner from at most `rank` directions of the features; None where there is none."""
        ...


class Objective(Protocol):
    """Smooth, and `curvature_floor`-strongly convex everywhere (a proven figure, not an estimate).

    A floor of 0 says that nothing is proven: what minimises such an objective can certify no distance.
    """

    @property
    def dimension(self) -> int: ...

    @property
    def rows(self) -> Rows: ...

    @property
    def anchor(self) -> Tensor: ...

    @property
    def curvature_floor(self) -> float: ...

    def evaluate(self, w: Tensor, *, single: bool = False) -> Evaluation: ...

    def value(self, w: Tensor) -> float: ...

    def gradient(self, w: Tensor) -> Tensor: ...

    def value_and_gradient(self, w: Tensor) -> tuple[float, Tensor]: ...

    def certified_gradient(self, w: Tensor) -> CertifiedGradient: ...

    def hessian(self, w: Tensor, sampling: Sampling = EXACT) -> HessianOperator: ...

    def hvp(self, w: Tensor, v: Tensor) -> Tensor: ...

"""Lanczos iteration with a random start, and what its Ritz values prove (docs/maths.md, section 8).

Kuczyński & Woźniakowski (1992): after k steps from a start uniform on the sphere, the extreme Ritz values are
within ε_k of the extreme eigenvalues, relative to the range of the spectrum, except with probability p.
Nothing is assumed about the spectrum.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from worker.engine import noise
from worker.engine.objective import Reduce
from worker.engine.rounding import UNIT, gamma

Route: TypeAlias = Literal["direct", "split"]
Gaussian: TypeAlias = Callable[[int], Tensor]
"""Returns `count` independent standard normals in float64. Only tests use a seeded generator."""

_BOTH_ENDS = 3.296  # 2·1.648: each end of the spectrum fails with probability at most p/2
_COARSEST = 0.25  # largest ε_k for which the slack's estimate of ‖A‖ from the Ritz values holds
_SMALL = 1e-12  # a residual this small relative to the spectrum has lost digits to cancellation
_ROUNDING_ONLY = 64 * UNIT  # a residual this small is all rounding: the Krylov space is numerically invariant


@dataclass(frozen=True, slots=True)
class LanczosRun:
    """Ritz values after `steps` (k) Lanczos steps, and the p they spent.

    On the split route they belong to S.
    """

    route: Route
    steps: int
    failure_probability: float
    ritz_min: float
    ritz_max: float
    ritz_values: tuple[float, ...]
    rounding_slack: float


class FailureBudget:
    """A failure probability p spent by halves. Any number of runs together spends less than p."""

    def __init__(self, failure_probability: float) -> None:
        if not 0 < failure_probability < 1:
            raise ValueError(f"the failure probability must be between 0 and 1, got {failure_probability!r}")
        self._next = failure_probability / 2

    @property
    def next(self) -> float:
        """The share that the next run will spend."""
        return self._next

    def spend(self) -> float:
        """Return the next share and halve what is left."""
        spent, self._next = self._next, self._next / 2
        return spent


def krylov_error(*, steps: int, dimension: int, failure_probability: float) -> float:
    """Return ε_k for both ends at once: √ε_k = ln(3.296·√d/p)/(2k - 1), rounded up.

    >>> round(krylov_error(steps=500, dimension=26_506, failure_probability=1e-9), 6)
    0.000731
    """
    root = math.log(_BOTH_ENDS * math.sqrt(dimension) / failure_probability) / (2 * steps - 1)
    return root**2 * (1 + 2**-48)


def floor_of(run: LanczosRun, dimension: int) -> float | None:
    """Return a lower bound on λ_min, rounded down, or None if k is too small.

    The bound is θ_min - ε_k·range - slack with range = (θ_max - θ_min)/(1 - 2ε_k).

    >>> run = LanczosRun("direct", 100, 1e-6, 0.5, 1.5, (), 0.0)
    >>> floor_of(run, 1000)
    0.49124...
    """
    epsilon = krylov_error(steps=run.steps, dimension=dimension, failure_probability=run.failure_probability)
    if not epsilon < _COARSEST:
        return None
    width = (run.ritz_max - run.ritz_min) / (1 - 2 * epsilon) * (1 + 2**-48)
    floor = run.ritz_min - epsilon * width * (1 + 2**-48) - run.rounding_slack
    return floor - 4 * UNIT * (abs(run.ritz_min) + abs(floor))


def steps_for(*, excess: float, width: float, dimension: int, failure_probability: float) -> int | None:
    """Return the smallest k whose ε_k·range is at most `excess`, for Ritz values `width` apart.

    Returns None if no k is enough.
    """
    if not (excess > 0 and math.isfinite(excess)):
        return None
    epsilon = min(excess / (width + 2 * excess), 0.99 * _COARSEST)  # ε·width/(1 - 2ε) = excess
    logarithm = math.log(_BOTH_ENDS * math.sqrt(dimension) / failure_probability)
    return math.ceil((logarithm / math.sqrt(epsilon) + 1) / 2) + 1


class Lanczos:
    """The tridiagonal T and the basis Q, grown step by step and orthogonalised twice against all of Q.

    `rounding` bounds ‖fl(A·v) - A·v‖ for a unit v. Rounding and lost orthogonality make T the exact
    tridiagonal of A + E from the same start. `slack` bounds ‖E‖ from quantities measured on the way.
    """

    def __init__(
        self,
        product: Callable[[Tensor], Tensor],
        dimension: int,
        *,
        gaussian: Gaussian = noise.draw,
        rounding: float = 0.0,
        reduce: Reduce = lambda tensor: tensor,
        device: torch.device | str = "cpu",
    ) -> None:
        self._product, self._dimension, self._rounding = product, dimension, rounding
        self._gaussian, self._reduce, self._device = gaussian, reduce, device
        start = self._normal()
        self._basis = torch.empty(min(dimension + 1, 32), dimension, dtype=torch.float64, device=device)
        self._basis[0] = start / torch.linalg.vector_norm(start)
        self.diagonal: list[float] = []
        self.off: list[float] = []  # off[j] = β_j couples q_j and q_{j+1}
        self._defect = 0.0  # Σ_j ‖A·q_j - Q·T_j‖² over the columns computed
        self.products = 0
        self.exhausted = False  # Q spans the whole space, so T has all eigenvalues

    def extend(self, steps: int) -> bool:
        """Grow to `steps` steps. Returns False if a product is not finite, as after a cancellation."""
        while len(self.diagonal) < steps and not self.exhausted:
            if not self._step():
                return False
        return True

    def run(self, route: Route, steps: int, failure_probability: float) -> LanczosRun:
        """Return the current Ritz values as a run that spends `failure_probability`.

        The run counts the steps made, or `steps` once the space is exhausted.
        """
        values = self.ritz_values()
        return LanczosRun(
            route=route,
            steps=steps if self.exhausted else len(self.diagonal),
            failure_probability=failure_probability,
            ritz_min=min(values),
            ritz_max=max(values),
            ritz_values=values,
            rounding_slack=self.slack(values),
        )

    def ritz_values(self) -> tuple[float, ...]:
        """Return the eigenvalues of T in ascending order."""
        if len(self.diagonal) == 1:
            return (self.diagonal[0],)
        from scipy.linalg import eigvalsh_tridiagonal  # imported here because only networks need it

        return tuple(
            float(v) for v in eigvalsh_tridiagonal(self.diagonal, self.off[: len(self.diagonal) - 1])
        )

    def extremes(self) -> tuple[float, float]:
        """Return the smallest and the largest Ritz value."""
        values = self.ritz_values()
        return values[0], values[-1]

    def slack(self, values: tuple[float, ...]) -> float:
        """Return the bound √2·‖F‖_F + ‖δT‖ on ‖E‖.

        F is the defect of A·Q̃ = Q̃·T for the orthonormal Q̃ closest to Q that starts from q_1.
        """
        k = len(self.diagonal)
        basis = self._basis[: k if self.exhausted else k + 1]
        identity = torch.eye(len(basis), dtype=torch.float64, device=basis.device)
        skew = float(torch.linalg.matrix_norm(basis @ basis.T - identity)) + len(basis) * gamma(
            self._dimension
        )
        norm = 2 * max(
            abs(values[0]), abs(values[-1]), *(self.off or [0.0])
        )  # above ‖A‖, ‖T‖ where ε_k < 1/4
        defect = math.sqrt(self._defect) + math.sqrt(k) * self._rounding + 4 * skew * norm
        return 1.01 * (math.sqrt(2) * defect + 64 * k * UNIT * norm)

    def _step(self) -> bool:
        j = len(self.diagonal)
        basis, q = self._basis[: j + 1], self._basis[j]
        image = self._product(q)
        self.products += 1
        size = float(torch.linalg.vector_norm(image))
        if not math.isfinite(size):
            return False
        coefficients = basis @ image
        rest = image - basis.T @ coefficients
        again = basis @ rest
        rest -= basis.T @ again
        alpha, beta = float(coefficients[j] + again[j]), float(torch.linalg.vector_norm(rest))
        self.diagonal.append(alpha)
        known = alpha * q + (self.off[j - 1] * self._basis[j - 1] if j else 0.0)
        scale = max(abs(alpha), *(self.off or [0.0]), size)
        if j + 1 >= self._dimension:
            self.exhausted = True
            left = image - known
        else:
            self.off.append(beta)
            self._store(j + 1, rest / beta if beta > _SMALL * scale else self._across(basis, rest, size))
            left = image - known - beta * self._basis[j + 1]
        self._defect += (float(torch.linalg.vector_norm(left)) + 8 * UNIT * size) ** 2
        return True

    def _normal(self) -> Tensor:
        """Return a Gaussian vector (d,), equal on all ranks: the sum of their draws."""
        return self._reduce(self._gaussian(self._dimension).to(self._device, torch.float64))

    def _across(self, basis: Tensor, rest: Tensor, size: float) -> Tensor:
        """Return the next direction when little is left of A·q_j: the rest, orthogonalised once more.

        Stopping here and claiming any number of steps would be wrong. A start with almost nothing of some
        eigenvector stops in just this way, and more often than the probability p accounts for. If the rest is
        all rounding, the space is invariant and any direction across it continues the iteration. A fresh one
        may find what the start missed. The remaining error is part of the measured defect.
        """
        for candidate in (rest, self._normal(), self._normal()):
            length = float(torch.linalg.vector_norm(candidate))
            if length <= _ROUNDING_ONLY * size or length == 0:
                continue
            q = candidate / length
            for _ in range(3):
                q = q - basis.T @ (basis @ q)
                length = float(torch.linalg.vector_norm(q))
                if length < 1e-3:
                    break
                q = q / length
            else:
                return q
        return rest / rest.new_tensor(math.nan)  # not finite, so the caller gives up

    def _store(self, index: int, q: Tensor) -> None:
        if index >= len(self._basis):
            grown = self._basis.new_empty(2 * len(self._basis), self._dimension)
            grown[: len(self._basis)] = self._basis
            self._basis = grown
        self._basis[index] = q

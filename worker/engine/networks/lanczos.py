"""Lanczos with a random start, and what its Ritz values prove (docs/maths.md, section 8).

Kuczyński & Woźniakowski (1992): the extreme Ritz values of k steps from a start uniform on the sphere are
within ε_k of the extreme eigenvalues, relative to the range of the spectrum, except with probability p.
Nothing is assumed of the spectrum.
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
"""`count` independent standard normals, float64; of the operating system's entropy unless a test says so."""

_BOTH_ENDS = 3.296  # 2·1.648: each end of the spectrum fails with probability p/2 at most
_COARSEST = 0.25  # of ε_k: beyond, the slack's estimate of ‖A‖ from the Ritz values would not hold
_SMALL = 1e-12  # a residual this small beside the spectrum has lost digits to cancellation
_NOTHING = 64 * UNIT  # one this small has lost them all: the Krylov space is invariant, as far as can be seen


@dataclass(frozen=True, slots=True)
class LanczosRun:
    """One look at `steps` (k) Lanczos steps. On the split route the Ritz values are those of S."""

    route: Route
    steps: int
    failure_probability: float
    ritz_min: float
    ritz_max: float
    ritz_values: tuple[float, ...]
    rounding_slack: float


class Allowance:
    """p, spent by halves: each look takes half of what is left, so any number of looks spends less than p."""

    def __init__(self, failure_probability: float) -> None:
        if not 0 < failure_probability < 1:
            raise ValueError(f"the failure probability must be between 0 and 1, got {failure_probability!r}")
        self._next = failure_probability / 2

    @property
    def next(self) -> float:
        return self._next

    def spend(self) -> float:
        spent, self._next = self._next, self._next / 2
        return spent


def krylov_error(*, steps: int, dimension: int, failure_probability: float) -> float:
    """ε_k: √ε_k = ln(3.296·√d/p)/(2k - 1), for both ends at once.

    >>> round(krylov_error(steps=500, dimension=26_506, failure_probability=1e-9), 6)
    0.000731
    """
    root = math.log(_BOTH_ENDS * math.sqrt(dimension) / failure_probability) / (2 * steps - 1)
    return root**2 * (1 + 2**-48)


def floor_of(run: LanczosRun, dimension: int) -> float | None:
    """θ_min - ε_k·range - slack ≤ λ_min, range = (θ_max - θ_min)/(1 - 2ε_k); rounded down. None: k too small.

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
    """The least k whose ε_k·range is at most `excess` for Ritz values `width` apart; None if none is."""
    if not (excess > 0 and math.isfinite(excess)):
        return None
    epsilon = min(excess / (width + 2 * excess), 0.99 * _COARSEST)  # ε·width/(1 - 2ε) = excess
    logarithm = math.log(_BOTH_ENDS * math.sqrt(dimension) / failure_probability)
    return math.ceil((logarithm / math.sqrt(epsilon) + 1) / 2) + 1


class Lanczos:
    """The tridiagonal T and the basis Q, grown step by step, orthogonalised twice against all of Q.

    `rounding` bounds ‖fl(A·v) - A·v‖ for a unit v. Rounding and lost orthogonality make T the exact
    tridiagonal of A + E from the same start; `slack` bounds ‖E‖ from what was measured on the way.
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
        self._defect = 0.0  # Σ_j ‖A·q_j - Q·T_j‖², as far as computed
        self.products = 0
        self.exhausted = (
            False  # every dimension is in Q: T has all eigenvalues, and more steps change nothing
        )

    def extend(self, steps: int) -> bool:
        """Grow to `steps` steps; False when a product is not finite, as after a cancellation."""
        while len(self.diagonal) < steps and not self.exhausted:
            if not self._step():
                return False
        return True

    def run(self, route: Route, steps: int, failure_probability: float) -> LanczosRun:
        """What is known now, said of the steps made, or of any number once the space is exhausted."""
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
        if len(self.diagonal) == 1:
            return (self.diagonal[0],)
        from scipy.linalg import eigvalsh_tridiagonal  # here: only networks need it

        return tuple(
            float(v) for v in eigvalsh_tridiagonal(self.diagonal, self.off[: len(self.diagonal) - 1])
        )

    def extremes(self) -> tuple[float, float]:
        values = self.ritz_values()
        return values[0], values[-1]

    def slack(self, values: tuple[float, ...]) -> float:
        """√2·‖F‖_F + ‖δT‖, with F the defect of A·Q̃ = Q̃·T for the orthonormal Q̃ nearest to start from q_1."""
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
        """(d,) the same on all ranks, where a sum of normals is one."""
        return self._reduce(self._gaussian(self._dimension).to(self._device, torch.float64))

    def _across(self, basis: Tensor, rest: Tensor, size: float) -> Tensor:
        """The next direction where little is left of A·q_j: what is left, orthogonalised once more.

        To stop here and speak of any number of steps would be wrong: a start that has next to nothing of
        some eigenvector stops just so, and more often than the probability that KW allow for it. If all of
        it is rounding, the space is invariant, and any direction across it continues it; a fresh one may
        find what the start has missed. What it is not exactly is in the measured defect.
        """
        for candidate in (rest, self._normal(), self._normal()):
            length = float(torch.linalg.vector_norm(candidate))
            if length <= _NOTHING * size or length == 0:
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
        return rest / rest.new_tensor(math.nan)  # not finite: the caller gives up

    def _store(self, index: int, q: Tensor) -> None:
        if index >= len(self._basis):
            grown = self._basis.new_empty(2 * len(self._basis), self._dimension)
            grown[: len(self._basis)] = self._basis
            self._basis = grown
        self._basis[index] = q

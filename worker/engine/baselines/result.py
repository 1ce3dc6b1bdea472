"""The result of a baseline: its final point, its own Δ, and whether its conditions held."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, TypeAlias

from torch import Tensor

from lethe.certificate.privacy import classical_sigma, sigma_for
from worker.engine.bounds import strongly_convex_distance
from worker.engine.linear import LinearObjective
from worker.engine.linearised.objective import LinearisedObjective
from worker.engine.objective import CertifiedGradient, Objective

Method: TypeAlias = Literal["tr-paper", "guo2020", "zhang2024"]
Constant: TypeAlias = float | int | bool | str | None
Calibration: TypeAlias = Literal["classical", "analytic"]


class Outcome(StrEnum):
    """HOLDS, or the first condition of the publication that fails. Only HOLDS may be certified."""

    HOLDS = "every condition of the publication that can be checked holds"
    NOT_CONVEX = "the loss is not known to be convex in the weights"
    NO_LIPSCHITZ = "no proven Lipschitz constants are known for this loss"
    NO_FLOOR = "no positive curvature floor is known"
    LONG_ROWS = "rows are longer than the bound assumes"
    UNBOUNDED_GRADIENT = "the gradient of this loss has no bound"
    NOT_A_MINIMISER = "the start is not the minimiser on the original records"
    OUTSIDE_CONSTRAINT = "the weights are not within the norm constraint"
    DAMPING_TOO_SMALL = "the damping does not make the Hessian positive definite"
    DIVERGED = "the inverse-Hessian recursion diverged"
    NON_FINITE = "a value is not finite"


@dataclass(frozen=True, slots=True)
class Verdict:
    """An outcome with the figures behind it."""

    outcome: Outcome
    reason: str  # the outcome in numbers

    @property
    def holds(self) -> bool:
        """Whether every checkable condition holds."""
        return self.outcome is Outcome.HOLDS


HOLDS = Verdict(Outcome.HOLDS, Outcome.HOLDS.value)


@dataclass(frozen=True, slots=True)
class BaselineResult:
    """Result of a baseline.

    `distance` is the method's own Δ, infinite if a condition failed. `posterior` is B1 at `w`.
    """

    method: Method
    verdict: Verdict
    w: Tensor  # (d,)
    distance: float
    posterior: float | None
    gradient_norm: float
    rounding: float
    constants: Mapping[str, Constant]
    assumed: tuple[str, ...]
    passes: float
    seconds: float

    @property
    def certifiable(self) -> bool:
        """Whether the conditions hold and Δ is finite.

        Otherwise no certificate may be issued, whatever the formula gives.
        """
        return self.verdict.holds and math.isfinite(self.distance)


def convex(objective: Objective) -> bool:
    """Return whether the loss is convex in the weights, so that f is λ-strongly convex."""
    return isinstance(objective, LinearObjective | LinearisedObjective)


def posterior(objective: Objective, w: Tensor) -> float | None:
    """Return B1 at any point, a proven second figure for a baseline, or None if the loss is not convex."""
    return posterior_from(objective, objective.certified_gradient(w))


def posterior_from(objective: Objective, here: CertifiedGradient) -> float | None:
    """Return B1 from a known gradient, or None if the loss is not convex."""
    if not convex(objective):
        return None
    return strongly_convex_distance(
        gradient_norm=here.norm, rounding=here.rounding, floor=objective.curvature_floor
    )


@dataclass(frozen=True, slots=True)
class NoiseLast:
    """A σ computed from the distance achieved.

    It depends on the data, which the published analyses ignore.
    """

    calibration: Calibration
    sigma: float | None
    reason: str | None  # why there is no σ


def noise_last(*, distance: float, epsilon: float, delta: float, calibration: Calibration) -> NoiseLast:
    """Return σ for a distance, by the paper's Theorem 1 (`classical`) or the exact trade-off (`analytic`).

    The classical formula is proved for ε < 1 only, and there is no σ beyond that.

    >>> noise_last(distance=1.0, epsilon=1.0, delta=1e-5, calibration="classical").sigma is None
    True
    >>> round(noise_last(distance=1.0, epsilon=1.0, delta=1e-5, calibration="analytic").sigma, 3)
    3.731
    """
    if not (math.isfinite(distance) and distance > 0):
        return NoiseLast(calibration, None, f"no finite positive distance, got {distance!r}")
    if calibration == "analytic":
        return NoiseLast(calibration, sigma_for(epsilon=epsilon, delta=delta, distance=distance), None)
    if not epsilon < 1:
        return NoiseLast(calibration, None, f"the classical formula is proved for ε < 1, not for {epsilon!r}")
    return NoiseLast(calibration, classical_sigma(epsilon=epsilon, delta=delta, distance=distance), None)


def tidy(constants: Mapping[str, Constant]) -> dict[str, Constant]:
    """Replace infinities and NaN by None, because records cannot hold them."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in constants.items()
    }

"""How a run is set up, what it reports on the way, and how it ends."""

import math
from dataclasses import dataclass
from enum import StrEnum

from torch import Tensor


class Outcome(StrEnum):
    CERTIFIED = "certified distance within target"
    REACHED = "gradient small enough to ask for a certificate"
    STEPS_EXHAUSTED = "step limit reached before the target"
    TIME_EXHAUSTED = "time limit reached before the target"
    NON_FINITE = "the objective or its gradient is not finite at the start"
    STALLED = "rounding leaves no room for further progress"
    CANCELLED = "cancelled by the caller"


@dataclass(frozen=True, slots=True)
class SolverSettings:
    """Path, not promise: none of these can make a certificate wrong."""

    max_steps: int = 100
    max_seconds: float = math.inf
    max_products: int = 200  # per step
    initial_radius: float | None = None  # None: B1's ball, which holds the minimiser, or part of it
    accept: float = 0.1  # η₁
    expand: float = 0.75  # η₂
    shrink: float = 0.25  # γ_dec
    grow: float = 2.0  # γ_inc
    forcing: float = 0.05  # relative residual asked of the subproblem
    sample_fraction: float = 0.06  # 1.0: exact products throughout
    least_sample: int = 2048
    most_sample_bytes: int = 64 * 2**20
    preconditioner_rank: int = 128  # 0: none
    single_precision: bool = True  # for passes far from the target, when products are sampled
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One iteration. `gradient_norm` and `distance` are those of the point kept, certified at the end."""

    index: int
    gradient_norm: float
    distance: float
    radius: float
    rho: float
    accepted: bool
    products: int
    passes: float  # cumulative
    seconds: float  # cumulative


@dataclass(frozen=True, slots=True)
class Solution:
    outcome: Outcome
    w: Tensor  # (d,)
    gradient_norm: float
    rounding: float
    distance: float  # certified by B1; infinite where no curvature floor is proven
    steps: tuple[Step, ...]
    passes: float
    seconds: float

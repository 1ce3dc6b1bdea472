"""The one loop: trust-region Newton until the certified distance is within the target.

Nothing on the path is trusted: each accepted point's gradient is a float64 pass over every row, and B1 turns
it into a distance whatever brought us there. So the Hessian may be sampled, in float32, and preconditioned.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from worker.engine.bounds import reachable, strongly_convex_distance
from worker.engine.objective import EXACT, Evaluation, HessianOperator, Objective
from worker.engine.sampling import SampleSchedule
from worker.engine.subproblem import Proposal, Quadratic, Subproblem, steihaug
from worker.engine.validation import check_target, checked_point


class Outcome(StrEnum):
    CERTIFIED = "certified distance within target"
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
    initial_radius: float | None = None  # None: B1's ball, which holds the minimiser
    accept: float = 0.1  # η₁
    expand: float = 0.75  # η₂
    shrink: float = 0.25  # γ_dec
    grow: float = 2.0  # γ_inc
    forcing: float = 0.05  # relative residual asked of the subproblem
    sample_fraction: float = 0.06  # 1.0: exact products throughout
    least_sample: int = 2048
    most_sample_bytes: int = 64 * 2**20
    preconditioner_rank: int = 128  # 0: none
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One iteration. `gradient_norm` and `distance` are those of the point kept."""

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
    distance: float
    steps: tuple[Step, ...]
    passes: float
    seconds: float


def minimise(
    objective: Objective,
    start: Tensor,
    *,
    target: float,
    settings: SolverSettings | None = None,
    subproblem: Subproblem = steihaug,
    progress: Callable[[Step], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Solution:
    """Minimise from `start` (d,) until B1 certifies ‖w - ŵ‖ ≤ target, or say why not."""
    check_target(target)
    w = checked_point(start, objective.dimension, "start").to(objective.anchor.device)
    run = _Run(objective, w, target, settings or SolverSettings(), subproblem, cancelled)
    while (outcome := run.verdict()) is None:
        step = run.advance()
        if step is not None and progress is not None:
            progress(step)
    return run.solution(outcome)


class _Run:
    """State of one minimisation. `passes` is the only account of rows touched."""

    def __init__(
        self,
        objective: Objective,
        w: Tensor,
        target: float,
        settings: SolverSettings,
        subproblem: Subproblem,
        cancelled: Callable[[], bool] | None,
    ) -> None:
        self.started = time.monotonic()
        self.objective, self.target, self.settings = objective, target, settings
        self.subproblem, self.cancelled = subproblem, cancelled
        self.floor = objective.curvature_floor
        self.passes = 0.0
        self.steps: list[Step] = []
        self.futile = 0
        self.w = w
        self.here = self._evaluate(w)
        self.radius = self.distance if settings.initial_radius is None else settings.initial_radius
        self.operator: HessianOperator | None = None
        self.inverse: Callable[[Tensor], Tensor] | None = None
        self.schedule = SampleSchedule(
            count=objective.rows.count,
            width=objective.rows.width,
            fraction=settings.sample_fraction,
            least_rows=settings.least_sample,
            most_bytes=settings.most_sample_bytes,
            seed=settings.seed,
        )
        self.exact = False
        self.settled = False  # the last step was good: curvature, and with it the preconditioner, still holds

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    @property
    def distance(self) -> float:
        """(B1)"""
        return strongly_convex_distance(
            gradient_norm=self.here.norm, rounding=self.here.rounding, floor=self.floor
        )

    def verdict(self) -> Outcome | None:
        """Why to stop now, or None to go on; certification comes before every limit."""
        here = self.here
        cramped = not reachable(target=self.target, rounding=here.rounding, floor=self.floor)
        checks = (
            (Outcome.NON_FINITE, not (math.isfinite(here.norm) and math.isfinite(here.value))),
            (Outcome.CERTIFIED, self.distance <= self.target),
            (Outcome.CANCELLED, self.cancelled is not None and self.cancelled()),
            (Outcome.STALLED, self.futile >= 3 or (cramped and here.norm <= here.rounding)),
            (Outcome.STEPS_EXHAUSTED, len(self.steps) >= self.settings.max_steps),
            (Outcome.TIME_EXHAUSTED, self.seconds >= self.settings.max_seconds),
        )
        return next((outcome for outcome, holds in checks if holds), None)

    def advance(self) -> Step | None:
        """One proposal, judged. None when interrupted before the judgement."""
        operator = self.operator or self._linearise()
        quadratic = Quadratic(self.here.gradient, self._interruptible(operator), self.inverse)
        radius = self.radius
        proposal = self.subproblem(
            quadratic, radius, tolerance=self._tolerance(), limit=self.settings.max_products
        )
        self.passes += proposal.products * operator.fraction
        if self._interrupted():
            return None
        if not proposal.drop > 0:
            return self._without_step(radius, proposal.products)
        there = self._evaluate(self.w + proposal.step)
        rho, accepted = self._judge(proposal, there)
        self._resize(radius, float(torch.linalg.vector_norm(proposal.step)), rho, accepted, proposal.boundary)
        shrinkage = there.norm / self.here.norm
        self.schedule.learn(accepted=accepted, shrinkage=shrinkage, boundary=proposal.boundary)
        self.settled = accepted and shrinkage < 0.25
        if accepted:
            self.w, self.here = self.w + proposal.step, there
        # a rejection keeps an exact model, for a smaller region; a sampled one may be what was wrong
        if accepted or not self.exact:
            self.operator = None
        self.futile = 0 if accepted or not self.exact else self.futile + int(math.isnan(rho))
        return self._record(radius, rho, accepted, proposal.products)

    def _without_step(self, radius: float, products: int) -> Step:
        """The model offered no descent: single precision overflowed, or there is none left to be had."""
        self.futile += 3 if self.exact else 0
        self.schedule.give_up()
        self.operator = self.inverse = None
        return self._record(radius, math.nan, accepted=False, products=products)

    def solution(self, outcome: Outcome) -> Solution:
        return Solution(
            outcome=outcome,
            w=self.w,
            gradient_norm=self.here.norm,
            rounding=self.here.rounding,
            distance=self.distance,
            steps=tuple(self.steps),
            passes=self.passes,
            seconds=self.seconds,
        )

    def _evaluate(self, w: Tensor) -> Evaluation:
        self.passes += 1
        return self.objective.evaluate(w)

    def _linearise(self) -> HessianOperator:
        sampling = self.schedule.next()
        self.exact = sampling == EXACT
        self.operator = self.objective.hessian(self.w, sampling)
        self.passes += self.operator.fraction  # the logits at w
        if self.settings.preconditioner_rank > 0 and not self.settled:
            built = self.operator.approximate_inverse(self.settings.preconditioner_rank)
            if built is not None:
                self.inverse = built.apply
                self.passes += built.passes
        return self.operator

    def _tolerance(self) -> float:
        """Forcing term: a sample's own error makes a smaller residual worthless, and so does the target."""
        norm = self.here.norm
        forcing = min(self.settings.forcing, math.sqrt(norm)) if self.exact else self.settings.forcing
        goal = self.floor * self.target - self.here.rounding
        return max(forcing * norm, 0.4 * goal)

    def _judge(self, proposal: Proposal, there: Evaluation) -> tuple[float, bool]:
        """ρ and whether to accept; ρ is NaN where f(w) - f(w+p) is below its own rounding."""
        if not math.isfinite(there.norm):
            return math.nan, False
        if proposal.drop <= 2.0**-40 * abs(self.here.value):
            return math.nan, there.norm < self.here.norm
        rho = (self.here.value - there.value) / proposal.drop
        return rho, rho >= self.settings.accept

    def _resize(self, radius: float, length: float, rho: float, accepted: bool, boundary: bool) -> None:
        if not accepted:
            self.radius = self.settings.shrink * min(radius, length)
        elif boundary and rho >= self.settings.expand:
            self.radius = self.settings.grow * radius

    def _interrupted(self) -> bool:
        late = self.seconds >= self.settings.max_seconds
        return late or (self.cancelled is not None and self.cancelled())

    def _interruptible(self, operator: HessianOperator) -> Callable[[Tensor], Tensor]:
        """A product that turns NaN, which ends any subproblem, once the run is to stop."""

        def product(v: Tensor) -> Tensor:
            return v * math.nan if self._interrupted() else operator.product(v)

        return product

    def _record(self, radius: float, rho: float, accepted: bool, products: int) -> Step:
        step = Step(
            index=len(self.steps),
            gradient_norm=self.here.norm,
            distance=self.distance,
            radius=radius,
            rho=rho,
            accepted=accepted,
            products=products,
            passes=self.passes,
            seconds=self.seconds,
        )
        self.steps.append(step)
        return step

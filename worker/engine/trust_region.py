"""The one loop: trust-region Newton until the certified distance is within the target.

Nothing on the path is trusted: the last point's gradient is a float64 pass over every row, and B1 turns it
into a distance whatever brought us there. So on the way the Hessian may be sampled and preconditioned, and
gradients may be in float32; a pass in float32 has an infinite rounding bound and can certify nothing. Where
no curvature floor is proven (networks) there is no B1, and the loop ends with a small gradient instead.
"""

import math
import time
from collections.abc import Callable

import torch
from torch import Tensor

from worker.engine.bounds import reachable, strongly_convex_distance
from worker.engine.objective import EXACT, Evaluation, HessianOperator, Objective
from worker.engine.sampling import SampleSchedule
from worker.engine.solution import Outcome, Solution, SolverSettings, Step
from worker.engine.subproblem import Proposal, Quadratic, Subproblem, steihaug
from worker.engine.validation import check_floor, check_target, checked_point

_SINGLE_NOISE = 4e-6  # relative to a row's gradient: some sixty units of float32 rounding

__all__ = ["Outcome", "Solution", "SolverSettings", "Step", "minimise"]


def minimise(
    objective: Objective,
    start: Tensor,
    *,
    target: float,
    settings: SolverSettings | None = None,
    subproblem: Subproblem = steihaug,
    progress: Callable[[Step], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
    working_floor: float | None = None,
) -> Solution:
    """Minimise from `start` (d,) until B1 certifies ‖w - ŵ‖ ≤ target, or say why not.

    An objective without a proven floor needs a `working_floor`: the loop then ends, REACHED and never
    CERTIFIED, once ‖g‖ + e ≤ working_floor·target. A proven floor makes it idle.
    """
    check_target(target)
    floor = check_floor(objective.curvature_floor, working_floor)
    w = checked_point(start, objective.dimension, "start").to(objective.anchor.device)
    run = _Run(objective, w, target, floor, settings or SolverSettings(), subproblem, cancelled)
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
        floor: float,
        settings: SolverSettings,
        subproblem: Subproblem,
        cancelled: Callable[[], bool] | None,
    ) -> None:
        self.started = time.monotonic()
        self.objective, self.target, self.settings = objective, target, settings
        self.subproblem, self.cancelled = subproblem, cancelled
        self.floor = floor
        self.proven = objective.curvature_floor > 0
        self.passes = 0.0
        self.steps: list[Step] = []
        self.futile = 0
        self.operator: HessianOperator | None = None
        self.inverse: Callable[[Tensor], Tensor] | None = None
        self.schedule = SampleSchedule(
            objective.rows.count,
            objective.rows.width,
            settings.sample_fraction,
            settings.least_sample,
            settings.most_sample_bytes,
            settings.seed,
        )
        # where products are sampled, rows are many, and single precision pays for passes too
        self.single = settings.single_precision and self.schedule.next() != EXACT
        self.exact = False
        self.contraction = 0.1  # of ‖g‖ by the last step of a sampled model; a first guess
        self.w = w
        self.here = self._evaluate(w, expected=math.inf)
        # a floor that is not proven everywhere says less about how far the model can be trusted
        ball = self.estimate if self.proven else self.estimate / 8
        self.radius = ball if settings.initial_radius is None else settings.initial_radius
        self.settled = False  # the last step was good: curvature, and with it the preconditioner, still holds

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    @property
    def distance(self) -> float:
        """(B1), which is only worth what the floor is"""
        return strongly_convex_distance(
            gradient_norm=self.here.norm, rounding=self.here.rounding, floor=self.floor
        )

    @property
    def estimate(self) -> float:
        """B1 without its rounding, for points seen in single precision: where we are, not a promise."""
        return self.distance if math.isfinite(self.here.rounding) else self.here.norm / self.floor

    def verdict(self) -> Outcome | None:
        """Why to stop now, or None to go on; certification comes before every limit."""
        here = self.here
        bounded = math.isfinite(here.rounding)
        cramped = bounded and not reachable(target=self.target, rounding=here.rounding, floor=self.floor)
        checks = (
            (Outcome.NON_FINITE, not (math.isfinite(here.norm) and math.isfinite(here.value))),
            (Outcome.CERTIFIED if self.proven else Outcome.REACHED, self.distance <= self.target),
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
        point = self.w + proposal.step
        there = self._evaluate(point, expected=self._expected(proposal))
        rho, accepted = self._judge(proposal, there)
        self._resize(radius, float(torch.linalg.vector_norm(proposal.step)), rho, accepted, proposal.boundary)
        shrinkage = there.norm / self.here.norm
        # where curvature can be negative, a bad sample too ends at the edge: only a good step excuses it
        held = proposal.boundary and (self.proven or rho >= self.settings.expand)
        self.schedule.learn(accepted=accepted, shrinkage=shrinkage, boundary=held)
        self.settled = accepted and shrinkage < 0.25
        if accepted and not proposal.boundary:
            self.contraction = shrinkage
        if accepted:
            self.w, self.here = point, there  # the very tensor that was evaluated
        # a rejection keeps an exact model, for a smaller region; a sampled one may be what was wrong
        self.operator = None if accepted or not self.exact else operator
        self.futile = 0 if accepted or not self.exact else self.futile + int(math.isnan(rho))
        return self._record(radius, rho, accepted, proposal.products)

    def _without_step(self, radius: float, products: int) -> Step:
        """The model offered no descent: single precision overflowed, or there is none left to be had."""
        self.futile += 3 if self.exact else 0
        self.schedule.give_up()
        self.operator = self.inverse = None
        return self._record(radius, math.nan, accepted=False, products=products)

    def solution(self, outcome: Outcome) -> Solution:
        if outcome in (Outcome.STEPS_EXHAUSTED, Outcome.STALLED) and math.isinf(self.here.rounding):
            self.here = self._evaluate(self.w, expected=0.0)  # how near it came, certified
        return Solution(
            outcome=outcome,
            w=self.w,
            gradient_norm=self.here.norm,
            rounding=self.here.rounding,
            distance=self.distance if self.proven else math.inf,
            steps=tuple(self.steps),
            passes=self.passes,
            seconds=self.seconds,
        )

    def _evaluate(self, w: Tensor, *, expected: float) -> Evaluation:
        """Single precision while no certificate is in sight; double where ‖g‖ may be small enough for one."""
        goal = self.floor * self.target
        if self.single and expected > 2 * goal:
            self.passes += 1
            there = self.objective.evaluate(w, single=True)
            if math.isfinite(there.norm) and there.norm > max(goal, _SINGLE_NOISE * there.scale):
                return there
            self.single = math.isfinite(there.norm)
        self.passes += 1
        return self.objective.evaluate(w)

    def _expected(self, proposal: Proposal) -> float:
        """‖g‖ to be expected after the step: what was left unsolved, and what the sample gets wrong."""
        if proposal.boundary:
            return self.here.norm
        error = 0.0 if self.exact else self.contraction * self.here.norm
        return math.hypot(proposal.residual, error)

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
        spent = self.here.rounding if math.isfinite(self.here.rounding) else 0.0
        goal = self.floor * self.target - spent
        return max(forcing * norm, 0.4 * goal)

    def _judge(self, proposal: Proposal, there: Evaluation) -> tuple[float, bool]:
        """ρ and whether to accept; ρ is NaN where f(w) - f(w+p) is below its own rounding."""
        if not math.isfinite(there.norm):
            return math.nan, False
        double = math.isfinite(self.here.rounding) and math.isfinite(there.rounding)
        if proposal.drop <= (2.0**-40 if double else 2.0**-19) * abs(self.here.value):
            return math.nan, there.norm < self.here.norm
        rho = (self.here.value - there.value) / proposal.drop
        return rho, rho >= self.settings.accept

    def _resize(self, radius: float, length: float, rho: float, accepted: bool, boundary: bool) -> None:
        if not accepted:
            self.radius = self.settings.shrink * min(radius, length)
        elif boundary and (rho >= self.settings.expand or math.isnan(rho)):
            self.radius = self.settings.grow * radius

    def _interrupted(self) -> bool:
        late = self.seconds >= self.settings.max_seconds
        return late or (self.cancelled is not None and self.cancelled())

    def _interruptible(self, operator: HessianOperator) -> Callable[[Tensor], Tensor]:
        """A product that turns NaN, which ends any subproblem, once the run is to stop."""
        return lambda v: v * math.nan if self._interrupted() else operator.product(v)

    def _record(self, radius: float, rho: float, accepted: bool, products: int) -> Step:
        step = Step(
            index=len(self.steps),
            gradient_norm=self.here.norm,
            distance=self.estimate,
            radius=radius,
            rho=rho,
            accepted=accepted,
            products=products,
            passes=self.passes,
            seconds=self.seconds,
        )
        self.steps.append(step)
        return step

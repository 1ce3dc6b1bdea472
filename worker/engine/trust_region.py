"""Trust-region Newton method that runs until the certified distance is within the target.

The certificate does not depend on the path. The final gradient is a float64 pass over every row, and B1 turns
it into a distance. On the way, the Hessian may be sampled and preconditioned, and gradients may be computed
in float32: a float32 pass has an infinite rounding bound and can certify nothing. If no curvature floor is
proven (networks), B1 does not apply and the loop ends with a small gradient instead. docs/maths.md, section
6, describes the method and its cost.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

import torch
from torch import Tensor

from worker.engine.bounds import reachable, strongly_convex_distance
from worker.engine.objective import EXACT, Evaluation, HessianOperator, Objective
from worker.engine.recycling import RecycledSolves
from worker.engine.sampling import SampleSchedule
from worker.engine.secants import SecantSteps
from worker.engine.sketch import CurvatureSketch, RefinedSketch, outside_hessian
from worker.engine.subproblem import Proposal, Quadratic, Subproblem, steihaug
from worker.engine.validation import check_floor, check_target, checked_point

_FIRST_CONTRACTION = 0.1  # of ‖g‖ by a step, before any is known
_SINGLE_NOISE = 4e-6  # relative to a row's gradient: about sixty units of float32 rounding
# Steps from a sketch are checked by the gradient that follows, so they may go closer to what float32 can
# resolve. On real features its error is 1e-8 of a row's gradient, because the errors of many rows average
# out.
_SECANT_NOISE = 1e-7
_SECANT_MARGIN = 1.3  # A step that is expected this close to the goal is evaluated in float64 at once.
_SECANT_LEAST = 0.8  # A step that shrinks ‖g‖ by less shows that the sketch no longer helps.
_RECYCLED_FORCING = 0.2  # relative residual of a solve with one sample; the sample itself is off by more
_RECYCLED_SHARE = 0.7  # of such a solution that is taken, because the inverse of a sample is too large
_RECYCLED_LEAST = 0.8  # of the target's ‖g‖: a smaller residual is not worth a product
_QUADRATIC = 0.8  # A step of the trust-region loop with ρ above it ends where the Hessian hardly changes.


class Outcome(StrEnum):
    """Why a run ended."""

    CERTIFIED = "certified distance within target"
    REACHED = "gradient small enough to ask for a certificate"
    STEPS_EXHAUSTED = "step limit reached before the target"
    TIME_EXHAUSTED = "time limit reached before the target"
    NON_FINITE = "the objective or its gradient is not finite at the start"
    STALLED = "rounding leaves no room for further progress"
    CANCELLED = "cancelled by the caller"


@dataclass(frozen=True, slots=True)
class SolverSettings:
    """Parameters of the path to a solution. None of them can make a certificate wrong."""

    max_steps: int = 100
    max_seconds: float = math.inf
    max_products: int = 200  # per step
    initial_radius: float | None = None  # None: B1's distance, or an eighth of it without a proven floor
    accept: float = 0.1  # η₁
    expand: float = 0.75  # η₂
    shrink: float = 0.25  # γ_dec
    grow: float = 2.0  # γ_inc
    forcing: float = 0.05  # relative residual of the subproblem
    sample_fraction: float = 0.06  # 1.0: always exact products
    least_sample: int = 2048
    most_sample_bytes: int = 64 * 2**20
    preconditioner_rank: int = 128  # 0: none
    single_precision: bool = True  # far from the target, if products are sampled
    recycled_solves: bool = False  # near the minimiser, take every step with one sample of rows
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """Record of one iteration. `gradient_norm` and `distance` belong to the point that was kept."""

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
    """The final point of a run, with its certificate and cost."""

    outcome: Outcome
    w: Tensor  # (d,)
    evaluation: Evaluation  # the pass at w
    distance: float  # certified by B1; infinite if no curvature floor is proven
    steps: tuple[Step, ...]
    passes: float
    seconds: float

    @property
    def gradient_norm(self) -> float:
        """The computed ‖∇f(w)‖."""
        return self.evaluation.norm

    @property
    def rounding(self) -> float:
        """The bound on its rounding error. It is infinite if the last pass ran in float32."""
        return self.evaluation.rounding


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
    sketch: CurvatureSketch | None = None,
    known: Evaluation | None = None,
) -> Solution:
    """Minimise from `start` (d,) until B1 certifies ‖w - ŵ‖ ≤ target, or return why that failed.

    An objective without a proven floor needs a `working_floor`. The loop then ends as REACHED, never as
    CERTIFIED, once ‖g‖ + e ≤ working_floor·target. With a proven floor, `working_floor` is ignored.

    With a `sketch` of the Hessian near the start, steps from it come first. When they stop paying off, the
    trust-region loop continues from there. A wrong sketch costs two passes and changes nothing else. Without
    a proven floor, the sketch preconditions the conjugate gradients instead.

    `known` is the evaluation at `start`, if an earlier run has it. It saves the first pass.
    """
    check_target(target)
    floor = check_floor(objective.curvature_floor, working_floor)
    w = checked_point(start, objective.dimension, "start").to(objective.anchor.device)
    run = _Run(objective, w, target, floor, settings or SolverSettings(), subproblem, cancelled, known)
    secants: SecantSteps | None = None
    step: Step | None
    if sketch is not None and sketch.basis.shape[1] != objective.dimension:
        sketch = None
    if sketch is not None and not run.proven:
        run.inverse = partial(sketch.solve, lam=objective.lam)
    elif sketch is not None:
        secants = SecantSteps(RefinedSketch(sketch, run.outside_hessian), run.floor)
        run.contraction = sketch.expected_contraction(run.floor)
    elif not torch.equal(w, objective.anchor):  # A published version is close to the next minimiser.
        secants = run.sampled_secants()
    while (outcome := run.verdict()) is None:
        if secants is not None:
            step, goes_on = run.follow(secants)
            secants = secants if goes_on else None
        else:
            step = run.advance()
            secants = run.sampled_secants() if run.quadratic else None
        if step is not None and progress is not None:
            progress(step)
    return run.solution(outcome)


def train(
    objective: Objective,
    *,
    target: float,
    settings: SolverSettings | None = None,
    subproblem: Subproblem = steihaug,
    progress: Callable[[Step], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
    working_floor: float | None = None,
) -> Solution:
    """Minimise from the anchor. This is how a model is trained and retrained.

    The result is a function of the rows, λ and the anchor alone. No earlier model enters.
    """
    return minimise(
        objective,
        objective.anchor,
        target=target,
        settings=settings,
        subproblem=subproblem,
        progress=progress,
        cancelled=cancelled,
        working_floor=working_floor,
    )


class _Run:
    """State of one minimisation. `passes` is the only count of rows touched."""

    def __init__(
        self,
        objective: Objective,
        w: Tensor,
        target: float,
        floor: float,
        settings: SolverSettings,
        subproblem: Subproblem,
        cancelled: Callable[[], bool] | None,
        known: Evaluation | None,
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
        # Sampled products imply many rows, where single-precision passes pay off as well.
        self.single = settings.single_precision and self.schedule.next() != EXACT
        self.exact = False
        self.contraction = (
            _FIRST_CONTRACTION  # of ‖g‖ by the last step with a sampled model; an initial guess
        )
        self.w = w
        self.current = known or self._evaluate(w, expected=math.inf, scale=0.0)
        self.radius = self._first_radius()
        self.settled = False  # The last step was good, so the preconditioner is still valid.
        self.quadratic = False  # The last trust-region step found hardly any change of curvature.

    @property
    def seconds(self) -> float:
        """Seconds since the start of the run."""
        return time.monotonic() - self.started

    @property
    def distance(self) -> float:
        """The bound B1 at the current point. It is a proof only if the floor is proven."""
        return strongly_convex_distance(
            gradient_norm=self.current.norm, rounding=self.current.rounding, floor=self.floor
        )

    @property
    def estimate(self) -> float:
        """B1, without its rounding term after a single-precision pass. An estimate, not a bound."""
        return self.distance if math.isfinite(self.current.rounding) else self.current.norm / self.floor

    def verdict(self) -> Outcome | None:
        """Return why to stop now, or None to continue. Certification is checked before every limit."""
        current = self.current
        bounded = math.isfinite(current.rounding)
        unreachable = bounded and not reachable(
            target=self.target, rounding=current.rounding, floor=self.floor
        )
        checks = (
            (Outcome.NON_FINITE, not (math.isfinite(current.norm) and math.isfinite(current.value))),
            (Outcome.CERTIFIED if self.proven else Outcome.REACHED, self.distance <= self.target),
            (Outcome.CANCELLED, self.cancelled is not None and self.cancelled()),
            (Outcome.STALLED, self.futile >= 3 or (unreachable and current.norm <= current.rounding)),
            (Outcome.STEPS_EXHAUSTED, len(self.steps) >= self.settings.max_steps),
            (Outcome.TIME_EXHAUSTED, self.seconds >= self.settings.max_seconds),
        )
        return next((outcome for outcome, holds in checks if holds), None)

    def sampled_secants(self) -> SecantSteps | None:
        """Return steps that a fresh sample of rows at the current point proposes, if settings allow them."""
        settings = self.settings
        if not (settings.recycled_solves and self.proven):
            return None
        sampling = self.schedule.draw(settings.sample_fraction)
        if sampling == EXACT:
            return None
        operator = self.objective.hessian(self.w, sampling)
        preconditioner = operator.approximate_inverse(settings.preconditioner_rank)
        self.passes += operator.fraction + (preconditioner.passes if preconditioner else 0.0)
        solves = RecycledSolves(
            self._interruptible(operator),
            preconditioner.apply if preconditioner else None,
            fraction=operator.fraction,
            forcing=_RECYCLED_FORCING,
            least=_RECYCLED_LEAST * self.floor * self.target,
            limit=settings.max_products,
            share=_RECYCLED_SHARE,
        )
        return SecantSteps(solves, self.floor, patience=1)

    def follow(self, secants: SecantSteps) -> tuple[Step, bool]:
        """Take one step from a model of the curvature if ‖g‖ falls.

        Return its record and whether to take another.
        """
        before = secants.model.passes
        step = secants.propose(self.current.gradient)
        self.passes += secants.model.passes - before
        point = self.w + step
        trial = self._evaluate(
            point, expected=self.contraction * self.current.norm, noise=_SECANT_NOISE, margin=_SECANT_MARGIN
        )
        shrinkage = trial.norm / self.current.norm
        accepted = shrinkage < 1
        if accepted:
            secants.learn(step, trial.gradient - self.current.gradient)
            self.w, self.current, self.contraction = point, trial, max(shrinkage, _FIRST_CONTRACTION)
            self.radius = self._first_radius()
        length = float(torch.linalg.vector_norm(step))
        slow = shrinkage >= _SECANT_LEAST
        goes_on = not slow or (accepted and secants.patience > 0)
        secants.patience -= int(slow)
        return self._record(length, math.nan, accepted, 0), goes_on

    def outside_hessian(self) -> HessianOperator | None:
        """Return the Hessian at the current point over a sample, for what a sketch leaves out."""
        return outside_hessian(self.objective, self.w, self.settings.seed + len(self.steps))

    def advance(self) -> Step | None:
        """Propose one step and accept or reject it. Returns None if interrupted before the decision."""
        operator = self.operator or self._linearise()
        quadratic = Quadratic(self.current.gradient, self._interruptible(operator), self.inverse)
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
        trial = self._evaluate(point, expected=self._expected(proposal))
        rho, accepted = self._judge(proposal, trial)
        self._resize(radius, float(torch.linalg.vector_norm(proposal.step)), rho, accepted, proposal.boundary)
        shrinkage = trial.norm / self.current.norm
        # Where curvature can be negative, a bad sample ends at the edge too. Only a good step excuses it.
        limited = proposal.boundary and (self.proven or rho >= self.settings.expand)
        self.schedule.learn(accepted=accepted, shrinkage=shrinkage, boundary=limited)
        self.settled = accepted and shrinkage < 0.25
        self.quadratic = accepted and not proposal.boundary and not rho < _QUADRATIC
        if accepted and not proposal.boundary:
            self.contraction = shrinkage
        if accepted:
            self.w, self.current = point, trial  # the very tensor that was evaluated
        # After a rejection an exact model is kept for a smaller region. A sampled one may be at fault.
        self.operator = None if accepted or not self.exact else operator
        self.futile = 0 if accepted or not self.exact else self.futile + int(math.isnan(rho))
        return self._record(radius, rho, accepted, proposal.products)

    def _without_step(self, radius: float, products: int) -> Step:
        """Record that the model offers no descent: single precision overflowed, or there is none left."""
        self.futile += 3 if self.exact else 0
        self.schedule.give_up()
        self.operator = self.inverse = None
        return self._record(radius, math.nan, accepted=False, products=products)

    def solution(self, outcome: Outcome) -> Solution:
        """Return the current point as the solution."""
        if outcome in (Outcome.STEPS_EXHAUSTED, Outcome.STALLED) and math.isinf(self.current.rounding):
            self.current = self._evaluate(self.w, expected=0.0)  # certify how close it came
        return Solution(
            outcome=outcome,
            w=self.w,
            evaluation=self.current,
            distance=self.distance if self.proven else math.inf,
            steps=tuple(self.steps),
            passes=self.passes,
            seconds=self.seconds,
        )

    def _first_radius(self) -> float:
        if self.settings.initial_radius is not None:
            return self.settings.initial_radius
        # A floor that is not proven everywhere says less about how far to trust the model.
        return self.estimate if self.proven else self.estimate / 8

    def _evaluate(
        self,
        w: Tensor,
        *,
        expected: float,
        scale: float | None = None,
        noise: float = _SINGLE_NOISE,
        margin: float = 2.0,
    ) -> Evaluation:
        """Evaluate in float32 far from a certificate, and in float64 if ‖g‖ may be small enough for one.

        A pass in float32 would be wasted where ‖g‖ is expected to drown in its noise. That is judged by the
        `scale` of the last pass.
        """
        goal = self.floor * self.target
        scale = self.current.scale if scale is None else scale
        if self.single and expected > max(margin * goal, noise * scale):
            self.passes += 1
            trial = self.objective.evaluate(w, single=True)
            if math.isfinite(trial.norm) and trial.norm > max(goal, noise * trial.scale):
                return trial
            self.single = False  # It overflowed, or later gradients are smaller still and drown in its noise.
        certified = self.objective.evaluate(w)
        self.passes += certified.passes
        return certified

    def _expected(self, proposal: Proposal) -> float:
        """Return the ‖g‖ expected after the step, from the unsolved residual and the error of the sample."""
        if proposal.boundary:
            return self.current.norm
        error = 0.0 if self.exact else self.contraction * self.current.norm
        return math.hypot(proposal.residual, error)

    def _linearise(self) -> HessianOperator:
        sampling = self.schedule.next()
        self.exact = sampling == EXACT
        self.operator = self.objective.hessian(self.w, sampling)
        self.passes += self.operator.fraction  # the logits at w
        if self.settings.preconditioner_rank > 0 and not self.settled:
            preconditioner = self.operator.approximate_inverse(self.settings.preconditioner_rank)
            if preconditioner is not None:
                self.inverse = preconditioner.apply
                self.passes += preconditioner.passes
        return self.operator

    def _tolerance(self) -> float:
        """Return the residual to ask of the subproblem (the forcing term).

        A smaller residual than the error of the sample, or than the target needs, would be wasted work.
        """
        norm = self.current.norm
        forcing = min(self.settings.forcing, math.sqrt(norm)) if self.exact else self.settings.forcing
        spent = self.current.rounding if math.isfinite(self.current.rounding) else 0.0
        goal = self.floor * self.target - spent
        return max(forcing * norm, 0.4 * goal)

    def _judge(self, proposal: Proposal, trial: Evaluation) -> tuple[float, bool]:
        """Return ρ and whether to accept the step. ρ is NaN if f(w) - f(w+p) is below its rounding error."""
        if not math.isfinite(trial.norm):
            return math.nan, False
        double = math.isfinite(self.current.rounding) and math.isfinite(trial.rounding)
        if proposal.drop <= (2.0**-40 if double else 2.0**-19) * abs(self.current.value):
            return math.nan, trial.norm < self.current.norm
        rho = (self.current.value - trial.value) / proposal.drop
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
        """Return a product that yields NaN, which ends any subproblem, once the run should stop."""
        return lambda v: v * math.nan if self._interrupted() else operator.product(v)

    def _record(self, radius: float, rho: float, accepted: bool, products: int) -> Step:
        step = Step(
            index=len(self.steps),
            gradient_norm=self.current.norm,
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

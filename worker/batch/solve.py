"""Stage 2, solve: move from the published version towards the model retrained without the erased rows.

`solve` runs the policy's method. For networks, `approach` then measures the curvature at the point it reached
and takes further steps where rule B2 needs a smaller gradient. After this stage the point does not move.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from app.db.manifest import NETWORK_FAMILIES, Manifest
from app.db.transitions import TokenLost
from lethe.policy import Method
from worker import sketches
from worker.batch.progress import report_steps
from worker.batch.resolve import Resolution
from worker.context import JobContext
from worker.data.families import FamilyObjective, spec_of
from worker.engine.baselines import guo2020, tr_paper, zhang2024
from worker.engine.baselines.guo2020 import GuoSettings
from worker.engine.baselines.result import BaselineResult
from worker.engine.baselines.tr_paper import PaperSettings
from worker.engine.baselines.zhang2024 import ZhangSettings
from worker.engine.networks.certify_rounds import RoundsResult, certify_in_rounds
from worker.engine.networks.kantorovich import KantorovichResult, Verdict
from worker.engine.networks.objective import Network, NetworkObjective
from worker.engine.objective import Evaluation
from worker.engine.sketch import CurvatureSketch
from worker.engine.trust_region import Outcome, Step
from worker.fitting import distributed_objective, fit, local_objective, published_weights, solver_settings

HALVED_ATTEMPTS = 16


@dataclass(frozen=True)
class Candidate:
    """The point that a mechanism reached. It is neither certified nor noised yet."""

    mechanism: Method
    objective: FamilyObjective
    w: Tensor  # (d,), overwritten when noise is added
    gradient_norm: float
    rounding: float
    distance: float
    converged: bool
    """Whether the method reached its own target, or, for a baseline, whether its conditions hold."""
    outcome: str
    passes: float
    seconds: float
    steps: tuple[Step, ...] = ()
    baseline: BaselineResult | None = None
    evaluation: Evaluation | None = None
    """The last pass of the solve, at `w`, for `approach`."""
    curvature: KantorovichResult | None = None
    """What rule B2 found at `w`, after `approach`."""


def solve(context: JobContext, resolution: Resolution, mechanism: Method, scratch: Path) -> Candidate:
    """Run one mechanism on the retained rows: from the published version, or from the anchor to retrain."""
    if mechanism in ("tr", "retrain"):
        objective = distributed_objective(context, resolution.kept, scratch, resolution.rows)
        if mechanism == "retrain":
            return _minimise(context, objective, mechanism, objective.anchor)
        start = published_weights(context, objective)
        return _minimise(context, objective, mechanism, start, sketches.read_sketch(context))
    objective = local_objective(context, resolution.kept, scratch, resolution.rows)
    start = published_weights(context, objective)
    result = _run_baseline(context.manifest, mechanism, objective, start, resolution.records)
    return Candidate(
        mechanism=mechanism,
        objective=objective,
        w=result.w,
        gradient_norm=result.gradient_norm,
        rounding=result.rounding,
        distance=result.distance,
        converged=result.certifiable,
        outcome=result.verdict.reason,
        passes=result.passes,
        seconds=result.seconds,
        baseline=result,
    )


def _minimise(
    context: JobContext,
    objective: FamilyObjective,
    mechanism: Method,
    start: Tensor,
    sketch: CurvatureSketch | None = None,
) -> Candidate:
    manifest = context.manifest
    solution = fit(
        objective,
        start,
        target=manifest.policy.target_distance,
        settings=solver_settings(manifest),
        progress=report_steps(context, mechanism),
        cancelled=context.is_over,
        sketch=sketch,
    )
    if solution.outcome == Outcome.CANCELLED:
        raise TokenLost
    return Candidate(
        mechanism=mechanism,
        objective=objective,
        w=solution.w,
        gradient_norm=solution.gradient_norm,
        rounding=solution.rounding,
        distance=solution.distance,
        converged=solution.outcome in (Outcome.CERTIFIED, Outcome.REACHED),
        outcome=str(solution.outcome),
        passes=solution.passes,
        seconds=solution.seconds,
        steps=solution.steps,
        evaluation=solution.evaluation,
    )


def _run_baseline(
    manifest: Manifest, method: Method, objective: FamilyObjective, start: Tensor, erased: int
) -> BaselineResult:
    """Run a baseline from the published version `start` (d,). `objective` covers the retained rows.

    The baseline's constants are its publication's. What the publication leaves open comes from the policy.
    """
    options = manifest.policy.published
    if method == "tr-paper":
        return tr_paper.unlearn(
            objective, start, settings=PaperSettings(steps=options.steps, tau=options.tau)
        )
    if method == "guo2020":
        settings = GuoSettings(row_bound=options.row_bound)
        return guo2020.unlearn(objective, start, erased=erased, settings=settings)
    return zhang2024.unlearn(
        objective,
        start,
        ZhangSettings(constraint=options.constraint, damping=options.damping, row_bound=options.row_bound),
    )


# -- networks: getting close enough for rule B2 -------------------------------------------------------------


def measures_curvature(manifest: Manifest, candidate: Candidate) -> bool:
    """Return whether `approach` has anything to do: rule B2 bounds the distance, and the solve converged."""
    return candidate.mechanism == "tr" and manifest.rule == "B2" and candidate.converged


def approach(context: JobContext, candidate: Candidate) -> Candidate:
    """Measure the curvature for rule B2, stepping closer to the minimiser where the gradient is too large.

    Candidates that another rule bounds, or that did not converge, are returned unchanged.
    """
    manifest, objective = context.manifest, candidate.objective
    if not measures_curvature(manifest, candidate):
        return candidate
    assert isinstance(objective, NetworkObjective)
    rounds = certify_in_rounds(
        objective,
        network_of(manifest, objective),
        candidate.w,
        target=manifest.policy.target_distance,
        # Each attempt is an event of its own, and the first that succeeds is released. Together they spend p.
        failure_probability=manifest.failure_probability * share_of_attempt(context.attempts_started()),
        settings=solver_settings(manifest),
        known=candidate.evaluation,
        budget_products=manifest.policy.curvature_products,
        heuristic=manifest.assurance == "heuristic",
        cancelled=context.is_over,
        sketch=sketches.read_sketch(context),
    )
    stopped = any(solution.outcome is Outcome.CANCELLED for solution in rounds.solves)
    if stopped or rounds.kantorovich.verdict is Verdict.CANCELLED:
        raise TokenLost
    return _moved(candidate, rounds)


def share_of_attempt(number: int) -> float:
    """Return the share of the batch's failure probability that its attempt with this number may use.

    The shares of all attempts add up to 1. The first ones halve. There is no limit on attempts that faults of
    the infrastructure end, so later shares fall only with the square of the number: after days of faults
    there is still something left to certify with.

    >>> [share_of_attempt(number) for number in (1, 2, 3)]
    [0.5, 0.25, 0.125]
    >>> share_of_attempt(1000) > 1e-12
    True
    """
    if number <= HALVED_ATTEMPTS:
        return 2.0**-number
    later = number - HALVED_ATTEMPTS
    return 2.0**-HALVED_ATTEMPTS / (later * (later + 1))


def network_of(manifest: Manifest, objective: NetworkObjective) -> Network:
    """Return the architecture of a built-in network, or the module of a plug-in's."""
    return spec_of(manifest) if manifest.family in NETWORK_FAMILIES else objective.module


def _moved(candidate: Candidate, rounds: RoundsResult) -> Candidate:
    solves = rounds.solves
    return replace(
        candidate,
        w=rounds.w,
        gradient_norm=rounds.kantorovich.gradient_norm,
        rounding=rounds.kantorovich.rounding,
        outcome=str(solves[-1].outcome) if solves else candidate.outcome,
        passes=candidate.passes + rounds.passes + sum(solution.passes for solution in solves),
        seconds=candidate.seconds + rounds.seconds + sum(solution.seconds for solution in solves),
        steps=(*candidate.steps, *(step for solution in solves for step in solution.steps)),
        evaluation=None,
        curvature=rounds.kantorovich,
    )

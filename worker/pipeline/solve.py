"""Stage 2, solve: minimise f_R from the published version; from the anchor when retraining."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from app.db.manifest import Manifest
from app.db.policy import Method
from app.db.states import FileKind
from app.db.transitions import TokenLost
from worker.distributed import current
from worker.engine.published.outcome import PublishedResult
from worker.engine.rows import ArrayRows
from worker.engine.trust_region import Outcome, SolverSettings, Step
from worker.loading import checkpoints, datasets
from worker.loading.families import FamilyObjective, Place, family_of
from worker.pipeline import published
from worker.pipeline.context import Context
from worker.pipeline.fitting import fit
from worker.pipeline.progress import Estimate
from worker.pipeline.resolve import Resolved


@dataclass(frozen=True)
class Solved:
    """Where a mechanism ended. `near`: as near the minimiser as was asked, by the loop's own measure."""

    mechanism: Method
    objective: FamilyObjective
    w: Tensor  # (d,); overwritten when it is noised
    gradient_norm: float
    rounding: float
    distance: float
    near: bool
    outcome: str
    passes: float
    seconds: float
    steps: tuple[Step, ...] = ()
    published: PublishedResult | None = None


def objective_on(context: Context, paths: tuple[str, ...], scratch: Path) -> FamilyObjective:
    """For fitting and certifying, on all ranks of this attempt."""
    team = current.team(context.services.settings)
    storage, manifest = context.services.storage, context.manifest
    return team.objective(storage, manifest, paths, anchor_of(context), scratch / "rows")


def objective_here(context: Context, paths: tuple[str, ...], scratch: Path) -> FamilyObjective:
    """All rows on this rank: for scoring, and for methods that look at single rows."""
    rows = datasets.memory_map(context.services.storage, paths, context.manifest.width, scratch / "rows")
    return objective_of(context, rows, anchor_of(context))


def objective_of(context: Context, rows: datasets.MemoryMapped, anchor: Tensor | None) -> FamilyObjective:
    manifest, device = context.manifest, current.team(context.services.settings).device
    found = ArrayRows(rows.features, rows.labels)
    return family_of(manifest).objective_at(manifest, found, anchor, Place(device))


def anchor_of(context: Context) -> Tensor | None:
    """The same point in registration, unlearning and retraining; None is zero."""
    file = context.file(FileKind.ANCHOR)
    if file is None:
        return None
    family = family_of(context.manifest)
    tensors = checkpoints.read(context.services.storage, file.path, sha256=file.sha256)
    checkpoints.check_shapes(tensors, family.shapes(context.manifest))
    return family.flat(context.manifest, tensors)


def solve(context: Context, resolved: Resolved, mechanism: Method, scratch: Path) -> Solved:
    if mechanism in ("tr", "retrain"):
        objective = objective_on(context, resolved.kept, scratch)
        start = objective.anchor if mechanism == "retrain" else published_weights(context, objective)
        return _minimised(context, objective, mechanism, start)
    objective = objective_here(context, resolved.kept, scratch)
    found = published.unlearn(
        context.manifest, mechanism, objective, published_weights(context, objective), resolved.records
    )
    return Solved(
        mechanism=mechanism,
        objective=objective,
        w=found.w,
        gradient_norm=found.gradient_norm,
        rounding=found.rounding,
        distance=found.distance,
        near=found.certifiable,
        outcome=found.verdict.reason,
        passes=found.passes,
        seconds=found.seconds,
        published=found,
    )


def _minimised(context: Context, objective: FamilyObjective, mechanism: Method, start: Tensor) -> Solved:
    manifest = context.manifest
    solution = fit(
        objective,
        start,
        target=manifest.policy.target_distance,
        settings=solver_settings(manifest),
        progress=_reporting(context, mechanism),
        cancelled=context.is_over,
    )
    if solution.outcome == Outcome.CANCELLED:
        raise TokenLost
    return Solved(
        mechanism=mechanism,
        objective=objective,
        w=solution.w,
        gradient_norm=solution.gradient_norm,
        rounding=solution.rounding,
        distance=solution.distance,
        near=solution.outcome in (Outcome.CERTIFIED, Outcome.REACHED),
        outcome=str(solution.outcome),
        passes=solution.passes,
        seconds=solution.seconds,
        steps=solution.steps,
    )


def solver_settings(manifest: Manifest) -> SolverSettings:
    return SolverSettings(max_seconds=manifest.policy.time_limit_seconds)


def _reporting(context: Context, mechanism: Method) -> Callable[[Step], None]:
    policy = context.manifest.policy
    estimate = Estimate(policy.target_distance, policy.time_limit_seconds)

    def report(step: Step) -> None:
        far = estimate.after(step.distance, step.seconds)
        context.progress({"mechanism": mechanism, **_shown(step), "target": policy.target_distance, **far})

    return report


def published_weights(context: Context, objective: FamilyObjective) -> Tensor:
    version = context.current_version()
    tensors = checkpoints.read(context.services.storage, version.path, sha256=version.sha256)
    checkpoints.check_shapes(tensors, family_of(context.manifest).shapes(context.manifest))
    return objective.flatten(tensors)


def _shown(step: Step) -> dict[str, float | int | bool | None]:
    """A live view for the model's own team: two digits, gone when the batch is completed."""
    return {
        "step": step.index,
        "gradient_norm": float(f"{step.gradient_norm:.1e}"),
        "distance": float(f"{step.distance:.1e}") if math.isfinite(step.distance) else None,
        "products": step.products,
        "passes": round(step.passes, 3),
        "seconds": round(step.seconds, 3),
    }

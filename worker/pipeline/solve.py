"""Stage 2, solve: minimise f_R from the published version; from the anchor when retraining."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torch import Tensor

from app.db.states import FileKind
from worker.engine.rows import ArrayRows
from worker.engine.training import train
from worker.engine.trust_region import Solution, SolverSettings, Step, minimise
from worker.loading import checkpoints, datasets
from worker.loading.families import FamilyObjective, family_of
from worker.pipeline.context import Context
from worker.pipeline.resolve import Resolved

Mechanism = Literal["tr", "retrain"]


@dataclass(frozen=True)
class Solved:
    mechanism: Mechanism
    objective: FamilyObjective
    solution: Solution


def objective_on(context: Context, paths: tuple[str, ...], scratch: Path) -> FamilyObjective:
    manifest = context.manifest
    rows = datasets.memory_map(context.services.storage, paths, manifest.width, scratch / "rows")
    return family_of(manifest).objective(manifest, ArrayRows(rows.features, rows.labels), _anchor(context))


def _anchor(context: Context) -> Tensor | None:
    """The same point in registration, unlearning and retraining; None is zero."""
    file = context.file(FileKind.ANCHOR)
    if file is None:
        return None
    family = family_of(context.manifest)
    tensors = checkpoints.read(context.services.storage, file.path, sha256=file.sha256)
    checkpoints.check_shapes(tensors, family.shapes(context.manifest))
    return family.flat(context.manifest, tensors)


def solve(context: Context, resolved: Resolved, mechanism: Mechanism, scratch: Path) -> Solved:
    objective = objective_on(context, resolved.kept, scratch)
    target = context.manifest.policy.target_distance
    settings = SolverSettings(max_seconds=context.manifest.policy.time_limit_seconds)

    def report(step: Step) -> None:
        context.progress({"mechanism": mechanism, **_shown(step), "target": target})

    if mechanism == "retrain":
        solution = train(objective, target=target, settings=settings, progress=report)
    else:
        start = published_weights(context, objective)
        solution = minimise(objective, start, target=target, settings=settings, progress=report)
    return Solved(mechanism, objective, solution)


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

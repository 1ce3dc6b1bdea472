"""Fits of a model: its objective on given rows, its anchor and published weights, and the solver.

Shared by erasures, registration and reports, for convex families and networks alike.
"""

import math
from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from app.db.manifest import Manifest
from app.db.states import FileKind
from lethe.certificate.privacy import LARGEST_DIMENSION, grid_step
from worker.context import JobContext
from worker.data import datasets, weights
from worker.data.families import FamilyObjective, Place, family_of
from worker.engine import noise
from worker.engine.networks.objective import NetworkObjective
from worker.engine.rows import ArrayRows
from worker.engine.sketch import CurvatureSketch
from worker.engine.trust_region import Solution, SolverSettings, Step, minimise

# A network's curvature is not known before it is measured. Until then the solver assumes this share of λ.
_ASSUMED_CURVATURE = 0.25


def distributed_objective(
    context: JobContext, paths: tuple[str, ...], scratch: Path, rows: datasets.MemoryMapped | None = None
) -> FamilyObjective:
    """Open the objective on the rows of these parts, spread over all ranks of this attempt.

    `rows` are the rows of the same parts, if this rank has decoded them and computes alone.
    """
    storage, manifest, anchor = context.services.storage, context.manifest, read_anchor(context)
    return context.team.objective(storage, manifest, paths, anchor, scratch / "rows", rows)


def local_objective(
    context: JobContext,
    paths: tuple[str, ...],
    scratch: Path,
    rows: datasets.MemoryMapped | None = None,
    *,
    activations_kept: bool = False,
) -> FamilyObjective:
    """Open the objective with all rows on this rank: for scoring, and for methods that use single rows.

    `rows` are the rows of the same parts, if they are decoded already. With `activations_kept`, a network of
    which only some layers are trained computes the others once, which pays off for many passes.
    """
    if rows is None:
        rows = datasets.memory_map(context.services.storage, paths, context.manifest.width, scratch / "rows")
    return objective_from_rows(
        context, rows, read_anchor(context), activations=scratch if activations_kept else None
    )


def objective_from_rows(
    context: JobContext,
    rows: datasets.MemoryMapped,
    anchor: Tensor | None,
    *,
    activations: Path | None = None,
) -> FamilyObjective:
    """Build the model's objective on rows that are already mapped.

    `activations` is a folder in which a network may keep what its untrained layers compute.
    """
    manifest, place = context.manifest, Place(context.team.device, scratch=activations)
    array = ArrayRows(rows.features, rows.labels)
    return family_of(manifest).objective_at(manifest, array, anchor, place)


def read_anchor(context: JobContext) -> Tensor | None:
    """Read the anchor as one vector, or return None if it is zero.

    Training, unlearning and retraining share it. For a linearised network it also holds what is not trained.
    """
    file = context.file(FileKind.ANCHOR)
    if file is None:
        return None
    family = family_of(context.manifest)
    expected = family.anchor_shapes(context.manifest)
    tensors = weights.read(context.services.storage, file.path, expected, sha256=file.sha256)
    return family.flat_anchor(context.manifest, tensors)


def published_tensors(context: JobContext) -> dict[str, Tensor]:
    """Read the weights of the current version, by tensor name."""
    version = context.current_version()
    expected = family_of(context.manifest).shapes(context.manifest)
    return weights.read(context.services.storage, version.path, expected, sha256=version.sha256)


def published_weights(context: JobContext, objective: FamilyObjective) -> Tensor:
    """Read the weights of the current version as one flat vector (d,)."""
    return objective.flatten(published_tensors(context))


def solver_settings(manifest: Manifest) -> SolverSettings:
    """Return the solver's settings under this manifest's policy."""
    return SolverSettings(max_seconds=manifest.policy.time_limit_seconds, recycled_solves=manifest.linearised)


def fit(
    objective: FamilyObjective,
    start: Tensor,
    *,
    target: float,
    settings: SolverSettings,
    progress: Callable[[Step], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
    sketch: CurvatureSketch | None = None,
) -> Solution:
    """Minimise from `start` (d,) until within `target` of the minimiser.

    For a network that distance is an estimate, because its curvature is assumed. A `sketch` of the curvature
    at the start makes it faster.
    """
    working = _ASSUMED_CURVATURE * objective.lam if isinstance(objective, NetworkObjective) else None
    return minimise(
        objective,
        start,
        target=target,
        settings=settings,
        progress=progress,
        cancelled=cancelled,
        working_floor=working,
        sketch=sketch,
    )


def estimated_distance(objective: FamilyObjective, solution: Solution) -> float:
    """Return the distance to the minimiser: proven by B1 for convex families, estimated for networks."""
    if math.isfinite(solution.distance) or not isinstance(objective, NetworkObjective):
        return solution.distance
    return (solution.gradient_norm + solution.rounding) / (_ASSUMED_CURVATURE * objective.lam)


def noise_problem(w: Tensor, sigma: float) -> str | None:
    """Return why the weights `w` (d,) cannot be released with noise of scale σ, or None.

    Released weights lie on a grid whose step follows from σ, and the grid has a largest value.
    """
    if w.numel() > LARGEST_DIMENSION:
        return f"the model has more than {LARGEST_DIMENSION:,} weights"
    largest = float(w.abs().max()) if w.numel() else 0.0
    if largest / grid_step(sigma) < noise.LARGEST_STEPS:
        return None
    return (
        f"σ = {sigma:.3g} is too small for weights as large as {largest:.1g}: the grid of released weights "
        "does not reach that far"
    )

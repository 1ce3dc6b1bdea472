"""What registration tells the model's owner: figures and warnings, nothing of a single row."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from app.db.manifest import Manifest
from worker.loading.inspection import Inspection
from worker.pipeline.advice import NetworkAdvice


@dataclass(frozen=True)
class Measured:
    trained: Inspection
    held_out: Inspection
    weights: Tensor
    origin: str
    gradient_norm: float
    distance: float | None
    curvature_floor: float | None
    advice: NetworkAdvice | None
    seconds: float


def compose(manifest: Manifest, measured: Measured) -> dict[str, Any]:
    sigma, norm = manifest.sigma, float(torch.linalg.vector_norm(measured.weights))
    return {
        "rows": measured.trained.total,
        "subjects": len(measured.trained.subjects.seen),
        "holdout_rows": measured.held_out.total,
        "classes": _histogram(measured.trained),
        "dimension": measured.weights.numel(),
        "weights": measured.origin,
        "gradient_norm": _rough(measured.gradient_norm),
        "distance_bound": None if measured.distance is None else _rough(measured.distance),
        "curvature_floor": measured.curvature_floor,
        "network": None if measured.advice is None else measured.advice.shown(),
        "sigma": sigma,
        # the noise's expected length against that of the weights
        "sigma_relative": _rough(sigma * math.sqrt(measured.weights.numel()) / norm) if norm else None,
        "seconds": round(measured.seconds, 3),
        "warnings": warnings(manifest, measured),
    }


def _rough(figure: float) -> float:
    """Two digits: the report is kept for ever, and these are un-noised functions of everyone's rows."""
    return float(f"{figure:.1e}")


def _histogram(trained: Inspection) -> dict[str, int] | None:
    """Rows per class, when every class has enough different subjects to be told."""
    if trained.expected.classes is None or not trained.describable():
        return None
    return {str(c): trained.classes[c] for c in range(trained.expected.classes)}


def warnings(manifest: Manifest, measured: Measured) -> list[str]:
    trained, target = measured.trained, manifest.policy.target_distance
    found = []
    if trained.looks_standardised():
        found.append(
            "the features have means near 0 and variances near 1: constants computed from these rows would "
            "make the objective depend on them, and erasing a row would not undo that"
        )
    if shared := trained.subjects.shared(measured.held_out.subjects):
        found.append(f"{shared} subjects have rows both in the training data and in the holdout")
    if trained.expected.classes is not None and len(trained.classes) < trained.expected.classes:
        found.append(f"{trained.expected.classes - len(trained.classes)} of the declared classes have no row")
    if measured.distance is not None and measured.distance > target:
        found.append(
            f"the uploaded weights are not the objective's optimum: their certified distance is "
            f"{measured.distance:.1e}, the target {target:.3g}; the first erasure will move the model there"
        )
    if measured.advice is not None and (problem := measured.advice.problem()):
        found.append(f"{problem}; erasures will fall back to retraining")
    return found

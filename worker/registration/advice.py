"""Advice for choosing λ and Δ*, measured on holdout rows of people who have no training row.

Training rows can be erased. Figures computed from them would make the choice depend on them, and every
certificate states that it does not. Without such a holdout there is therefore no advice. The advice is rough,
and never a certificate.
"""

import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from app.db.states import PartRole
from lethe.certificate.assurance import ANALYTIC_FAMILIES
from worker.context import JobContext
from worker.data import datasets
from worker.data.datasets import DatasetError, MemoryMapped
from worker.data.families import FamilyObjective, spec_of
from worker.engine.networks.advice import (
    CertifiabilityEstimate,
    estimate_certifiability,
    smallest_certifiable_lambda,
)
from worker.engine.networks.architectures import AllCnn, Mlp
from worker.engine.networks.objective import NetworkObjective, subsample
from worker.engine.validation import EngineInputError
from worker.fitting import fit, objective_from_rows, read_anchor, solver_settings
from worker.registration.advice_grid import Grid, Limits, measure_grid

_SAMPLE_ROWS = 1024
NO_ROWS = (
    "There is no advice for choosing lambda and target_distance. It is measured on holdout rows of people "
    "who have no training rows. Upload such a holdout, or choose the values on a public dataset."
)
VOIDS_ASSURANCE = (
    "Choose lambda and target_distance from these figures or from public data only. If you choose them after "
    "looking at rows that can be erased, the assurance on the model's certificates is void. These "
    "figures come only from holdout rows of people without training rows."
)
NO_TRAINING_DATA = (
    "No training data has been uploaded yet. So the seconds per erasure are not known, and the advice holds "
    "only if nobody in the holdout gets training rows later."
)


@dataclass(frozen=True)
class NetworkAdvice:
    """Whether rule B2 seems within reach at the manifest's λ, and the smallest λ at which it does."""

    here: CertifiabilityEstimate
    smallest: CertifiabilityEstimate | None
    budget: int

    @property
    def certifiable(self) -> bool:
        """Whether rule B2 seems within reach at the manifest's λ."""
        return self.here.within(self.budget)

    def to_report(self) -> dict[str, Any]:
        """Return the figures for the registration report, to two digits."""
        best = self.smallest
        return {
            "certifiable": self.certifiable,
            "curvature": _rough(self.here.curvature),
            "curvature_needed": _rough(self.here.needed),
            "hessian_lipschitz": _rough(self.here.lipschitz),
            "route": self.here.route,
            "curvature_products": _count(self.here.steps),
            "solve_products": self.here.solve_products,
            "smallest_lambda": None if best is None else _rough(best.lam),
            "smallest_lambda_products": None if best is None else _count(best.steps),
        }

    def problem(self) -> str | None:
        """Return why rule B2 seems out of reach and what would help, or None if it is within reach."""
        if self.certifiable:
            return None
        advice = (
            "no lambda up to 10 would be enough"
            if self.smallest is None
            else f"the smallest lambda that would be enough is about {self.smallest.lam:.2g}"
        )
        return (
            f"at this lambda the network's curvature seems too small to be certified within {self.budget} "
            f"products: on the holdout it is about {self.here.curvature:.1e}, and {self.here.needed:.1e} is "
            f"needed; {advice}"
        )


@dataclass(frozen=True)
class Advice:
    """What was measured on the holdout, and on how many of its rows. Without rows there is no advice."""

    rows: int
    sigma_relative: float | None = None
    network: NetworkAdvice | None = None
    grid: Grid | None = None
    training_rows: int | None = None

    @property
    def problem(self) -> str | None:
        """Why the policy seems out of reach for a network, or None."""
        return None if self.network is None else self.network.problem()

    @property
    def basis(self) -> str:
        """The sentence that says which rows the figures come from, or why there are none."""
        rows = "1 holdout row" if self.rows == 1 else f"{self.rows} holdout rows"
        measured = f"Measured on {rows} of people without training rows, and on no training row."
        return measured if self.rows else NO_ROWS

    def warnings(self) -> list[str]:
        """Return what to bear in mind when using the figures. Without figures there is nothing to say."""
        if not self.rows:
            return []
        untrained = [] if self.training_rows else [NO_TRAINING_DATA]
        return [VOIDS_ASSURANCE, *untrained, *([] if self.grid is None else self.grid.warnings())]

    def to_report(self) -> dict[str, Any]:
        """Return the fields of the registration report that are advice."""
        result = self.to_result()
        return {
            "advice": self.basis,
            "sigma_relative": self.sigma_relative,
            "network": result["network"],
            "advice_grid": result["cells"] or None,
            "recommendation": result["recommendation"],
            "advice_warnings": result["warnings"],
        }

    def to_result(self) -> dict[str, Any]:
        """Return the result of a request for advice."""
        grid = self.grid
        return {
            "rows": self.rows,
            "basis": self.basis,
            "fit_rows": None if grid is None else grid.fit_rows,
            "score_rows": None if grid is None else grid.score_rows,
            "training_rows": self.training_rows,
            "cells": [] if grid is None else [cell.to_report() for cell in grid.cells],
            "recommendation": None if grid is None else grid.recommendation(),
            "warnings": self.warnings(),
            "sigma_relative": self.sigma_relative,
            "network": None if self.network is None else self.network.to_report(),
        }


def advise(
    context: JobContext,
    shared: int,
    scratch: Path,
    *,
    on_progress: Callable[[float], None] = lambda _: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Advice:
    """Fit the model on the holdout, and measure what the policy and others like it would mean for it.

    `shared` is the number of people with rows in both sets. Their holdout rows are left out.
    """
    rows = _independent_rows(context, shared, scratch)
    if rows is None:
        return Advice(0)
    anchor, training_rows = read_anchor(context), _training_rows(context)
    objective = objective_from_rows(context, rows, anchor)
    try:
        return Advice(
            len(rows.labels),
            _sigma_relative(context, objective),
            _for_network(context, objective),
            measure_grid(
                context.manifest,
                rows,
                anchor,
                training_rows=training_rows,
                limits=Limits(context.services.settings.advice_seconds, on_progress, cancelled),
                device=context.team.device,
            ),
            training_rows,
        )
    except EngineInputError:  # a family may reject so few rows, but that must not reject the model
        return Advice(0)


def _training_rows(context: JobContext) -> int | None:
    """Count the training rows from the footers of their files, or return None if there are none yet."""
    storage = context.services.storage
    return sum(datasets.row_count(storage, part.path) for part in context.parts()) or None


def _independent_rows(context: JobContext, shared: int, scratch: Path) -> MemoryMapped | None:
    """Map the holdout rows of people without training rows, or return None if there are none."""
    storage, width = context.services.storage, context.manifest.width
    parts = [part.rows_path for part in context.parts(PartRole.HOLDOUT)]
    people: set[str] | None = None
    if shared:
        parts = [path for path in parts if datasets.has_subjects(storage, path)]
        people = {subject for path in parts for subject in datasets.subjects(storage, path)}
        for path in training_paths(context):
            people -= datasets.holders(storage, path, people)
    if not parts or people == set():
        return None
    folder = scratch / "advice"
    try:
        return datasets.memory_map(storage, parts, width, folder, people)
    except DatasetError:  # no rows are left, or the disk is full
        return None
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # the rows stay mapped, and are freed with the last use


def training_paths(context: JobContext) -> list[str]:
    """Return the files of the training rows, with those that wait to be appended."""
    return [part.path for part in context.all_parts() if part.role == PartRole.TRAIN]


def _sigma_relative(context: JobContext, objective: FamilyObjective) -> float | None:
    """Return the expected norm of the noise, relative to that of the weights fitted on the holdout."""
    manifest = context.manifest
    solution = fit(
        objective,
        objective.anchor,
        target=manifest.policy.target_distance,
        settings=solver_settings(manifest),
    )
    norm = float(torch.linalg.vector_norm(solution.w))
    return _rough(manifest.sigma * math.sqrt(solution.w.numel()) / norm) if norm else None


def _for_network(context: JobContext, objective: FamilyObjective) -> NetworkAdvice | None:
    """Return advice for a network, or None if rule B2 does not apply or cannot give a guarantee."""
    manifest = context.manifest
    if manifest.rule != "B2" or manifest.family not in ANALYTIC_FAMILIES:
        return None
    assert isinstance(objective, NetworkObjective)
    spec = spec_of(manifest)
    assert isinstance(spec, Mlp | AllCnn)
    target, share = manifest.policy.target_distance, manifest.failure_probability / 2
    here = estimate_certifiability(
        subsample(objective, spec, _SAMPLE_ROWS), spec, objective.anchor, target, share
    )
    smallest = smallest_certifiable_lambda(
        lambda lam: NetworkObjective(objective.rows, spec, lam, objective.anchor, device=objective.device),
        spec,
        objective.anchor,
        target=target,
        failure_probability=share,
        budget_products=manifest.policy.curvature_products,
    )
    return NetworkAdvice(here, smallest.best, manifest.policy.curvature_products)


def _rough(figure: float) -> float | None:
    return float(f"{figure:.1e}") if math.isfinite(figure) else None


def _count(steps: float) -> int | None:
    return math.ceil(steps) if math.isfinite(steps) else None

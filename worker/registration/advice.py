"""Advice for choosing λ and Δ*, measured on holdout rows of people who have no training row.

Training rows can be erased. Figures of theirs would make the choice depend on them, and every certificate
says that it does not. So without such a holdout there is no advice. It is rough, and never a certificate.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from app.db.states import PartRole
from certificate.assurance import ANALYTIC_FAMILIES
from worker.engine.networks.advice import Outlook, outlook, smallest_certifiable_lambda
from worker.engine.networks.architectures import AllCnn, Mlp
from worker.engine.networks.curvature import sampled
from worker.engine.networks.objective import NetworkObjective
from worker.engine.validation import EngineInputError
from worker.loading import datasets
from worker.loading.datasets import DatasetError, MemoryMapped
from worker.loading.families import FamilyObjective, spec_of
from worker.pipeline.context import Context
from worker.pipeline.fitting import fit
from worker.pipeline.solve import anchor_of, objective_of, solver_settings

_ROWS = 1024
NO_ROWS = (
    "There is no advice for choosing lambda and target_distance. It is measured on holdout rows of people "
    "who have no training row: send such a holdout, or choose on a public dataset."
)


@dataclass(frozen=True)
class NetworkAdvice:
    """Whether B2 seems within reach at the manifest's λ, and the smallest λ at which it does."""

    here: Outlook
    smallest: Outlook | None
    budget: int

    @property
    def certifiable(self) -> bool:
        return self.here.within(self.budget)

    def shown(self) -> dict[str, Any]:
        """Two digits: it is rough anyway."""
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
        """Return why B2 seems out of reach, or None."""
        if self.certifiable:
            return None
        least = "none up to 10" if self.smallest is None else f"about {self.smallest.lam:.2g}"
        return (
            f"no curvature floor seems certifiable at this lambda within {self.budget} products: on the "
            f"holdout it is about {self.here.curvature:.1e}, {self.here.needed:.1e} is needed; the smallest "
            f"lambda that would do is {least}"
        )


@dataclass(frozen=True)
class Advice:
    """What was measured on so many holdout rows; nothing on none."""

    rows: int
    sigma_relative: float | None = None
    network: NetworkAdvice | None = None

    @property
    def problem(self) -> str | None:
        """Why the policy seems out of reach for a network, or None."""
        return None if self.network is None else self.network.problem()

    def shown(self) -> dict[str, Any]:
        """Return the members of the registration report that are advice."""
        rows = "1 holdout row" if self.rows == 1 else f"{self.rows} holdout rows"
        said = f"Measured on {rows} of people without training rows, and on no training row."
        return {
            "advice": said if self.rows else NO_ROWS,
            "sigma_relative": self.sigma_relative,
            "network": None if self.network is None else self.network.shown(),
        }


def advise(context: Context, shared: int, scratch: Path) -> Advice:
    """Fit the model on the holdout and say what the policy would mean for it.

    `shared`: how many people have rows in both sets; their holdout rows are left out.
    """
    rows = _independent_rows(context, shared, scratch)
    if rows is None:
        return Advice(0)
    objective = objective_of(context, rows, anchor_of(context))
    try:
        return Advice(len(rows.labels), _sigma_relative(context, objective), _for_network(context, objective))
    except EngineInputError:  # a family may refuse what so few rows hold; advice is not worth a rejection
        return Advice(0)


def _independent_rows(context: Context, shared: int, scratch: Path) -> MemoryMapped | None:
    storage, width = context.services.storage, context.manifest.width
    parts = [part.path for part in context.parts(PartRole.HOLDOUT)]
    people: set[str] | None = None
    if shared:
        parts = [path for path in parts if datasets.has_subjects(storage, path)]
        people = {subject for path in parts for subject in datasets.subjects(storage, path)}
        for part in context.parts():
            people -= datasets.holders(storage, part.path, people)
    if not parts or people == set():
        return None
    try:
        return datasets.memory_map(storage, parts, width, scratch / "advice", people)
    except DatasetError:  # no row is left, or no room
        return None


def _sigma_relative(context: Context, objective: FamilyObjective) -> float | None:
    """The noise's expected length against that of the weights fitted on the holdout."""
    manifest = context.manifest
    solution = fit(
        objective,
        objective.anchor,
        target=manifest.policy.target_distance,
        settings=solver_settings(manifest),
    )
    norm = float(torch.linalg.vector_norm(solution.w))
    return _rough(manifest.sigma * math.sqrt(solution.w.numel()) / norm) if norm else None


def _for_network(context: Context, objective: FamilyObjective) -> NetworkAdvice | None:
    """None where no certificate by B2 is to be had anyway."""
    manifest = context.manifest
    if manifest.rule != "B2" or manifest.family not in ANALYTIC_FAMILIES:
        return None
    assert isinstance(objective, NetworkObjective)
    spec = spec_of(manifest)
    assert isinstance(spec, Mlp | AllCnn)
    target, share = manifest.policy.target_distance, manifest.failure_probability / 2
    here = outlook(sampled(objective, spec, _ROWS), spec, objective.anchor, target, share)
    found = smallest_certifiable_lambda(
        lambda lam: NetworkObjective(objective.rows, spec, lam, objective.anchor, device=objective.device),
        spec,
        objective.anchor,
        target=target,
        failure_probability=share,
        budget_products=manifest.policy.curvature_products,
    )
    return NetworkAdvice(here, found.best, manifest.policy.curvature_products)


def _rough(figure: float) -> float | None:
    return float(f"{figure:.1e}") if math.isfinite(figure) else None


def _count(steps: float) -> int | None:
    return math.ceil(steps) if math.isfinite(steps) else None

"""What registration tells about a network: whether B2 seems within reach at its λ, and at what cost.

Measured on a sample of the rows, and rough: advice, not a certificate.
"""

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from app.db.manifest import Manifest
from certificate.assurance import ANALYTIC_FAMILIES
from worker.engine.networks.advice import Outlook, outlook, smallest_certifiable_lambda
from worker.engine.networks.architectures import AllCnn, Mlp
from worker.engine.networks.curvature import sampled
from worker.engine.networks.objective import NetworkObjective
from worker.loading.families import FamilyObjective, spec_of

_ROWS = 1024


@dataclass(frozen=True)
class NetworkAdvice:
    here: Outlook
    smallest: Outlook | None
    budget: int

    @property
    def certifiable(self) -> bool:
        return self.here.within(self.budget)

    def shown(self) -> dict[str, Any]:
        """Two digits: the report is kept for ever."""
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
        if self.certifiable:
            return None
        least = "none up to 10" if self.smallest is None else f"about {self.smallest.lam:.2g}"
        return (
            f"no curvature floor seems certifiable at this lambda within {self.budget} products: it is about "
            f"{self.here.curvature:.1e}, {self.here.needed:.1e} is needed; the smallest lambda that would do "
            f"is {least}"
        )


def advise(manifest: Manifest, objective: FamilyObjective, w: Tensor) -> NetworkAdvice | None:
    """None where no certificate by B2 is to be had anyway."""
    if manifest.rule != "B2" or manifest.family not in ANALYTIC_FAMILIES:
        return None
    assert isinstance(objective, NetworkObjective)
    spec = spec_of(manifest)
    assert isinstance(spec, Mlp | AllCnn)
    target, share = manifest.policy.target_distance, manifest.failure_probability / 2
    here = outlook(sampled(objective, spec, _ROWS), spec, w, target, share)
    found = smallest_certifiable_lambda(
        lambda lam: NetworkObjective(objective.rows, spec, lam, objective.anchor, device=objective.device),
        spec,
        w,
        target=target,
        failure_probability=share,
        budget_products=manifest.policy.curvature_products,
    )
    return NetworkAdvice(here, found.best, manifest.policy.curvature_products)


def _rough(figure: float) -> float | None:
    return float(f"{figure:.1e}") if math.isfinite(figure) else None


def _count(steps: float) -> int | None:
    return math.ceil(steps) if math.isfinite(steps) else None

"""Rule B2 on a batch: from where the solve ended to a point that is certified, and into the evidence."""

import math
from dataclasses import asdict, replace

from app.db.manifest import NETWORK_FAMILIES, Manifest
from app.db.transitions import TokenLost
from certificate import evidence
from worker.engine.networks.kantorovich import Kantorovich, Verdict
from worker.engine.networks.nearing import Neared, certify_nearer
from worker.engine.networks.objective import Network, NetworkObjective
from worker.engine.objective import CertifiedGradient
from worker.engine.trust_region import Outcome
from worker.loading.families import spec_of
from worker.pipeline.context import Context
from worker.pipeline.solve import Solved, solver_settings


def network_of(manifest: Manifest, objective: NetworkObjective) -> Network:
    """What is known of the network: its description if it is ours, else the module itself."""
    return spec_of(manifest) if manifest.family in NETWORK_FAMILIES else objective.module


def measured(context: Context, solved: Solved) -> tuple[Solved, Kantorovich]:
    """The point to release, perhaps nearer than the one given, and what B2 says there."""
    manifest, objective = context.manifest, solved.objective
    assert isinstance(objective, NetworkObjective)
    neared = certify_nearer(
        objective,
        network_of(manifest, objective),
        solved.w,
        target=manifest.policy.target_distance,
        # each attempt is an event of its own, and whichever succeeds is released: together they spend p
        failure_probability=manifest.failure_probability / 2 ** context.times_begun(),
        settings=solver_settings(manifest),
        gradient=_gradient(solved),
        budget_products=manifest.policy.curvature_products,
        heuristic=manifest.assurance == "heuristic",
        cancelled=context.is_over,
    )
    stopped = any(solve.outcome is Outcome.CANCELLED for solve in neared.solves)
    if stopped or neared.found.verdict is Verdict.CANCELLED:
        raise TokenLost
    return _moved(solved, neared), neared.found


def _gradient(solved: Solved) -> CertifiedGradient | None:
    """Of the pass in which the solve ended, if its rounding is bounded."""
    if not math.isfinite(solved.rounding):
        return None
    return CertifiedGradient(norm=solved.gradient_norm, rounding=solved.rounding)


def _moved(solved: Solved, neared: Neared) -> Solved:
    solves = neared.solves
    return replace(
        solved,
        w=neared.w,
        gradient_norm=neared.found.gradient_norm,
        rounding=neared.found.rounding,
        outcome=str(solves[-1].outcome) if solves else solved.outcome,
        passes=solved.passes + neared.passes + sum(solve.passes for solve in solves),
        seconds=solved.seconds + neared.seconds + sum(solve.seconds for solve in solves),
        steps=(*solved.steps, *(step for solve in solves for step in solve.steps)),
    )


def recorded(found: Kantorovich) -> evidence.Curvature:
    """As the evidence record has it; the verifier recomputes μ₀ from the Ritz values, and Δ from μ₀ and M."""
    assert found.curvature is not None
    return evidence.Curvature(
        floor=found.floor,
        runs=tuple(evidence.LanczosRun(**asdict(run)) for run in found.curvature.runs),
        hessian_lipschitz=found.lipschitz,
        hessian_lipschitz_source=found.source,
        hessian_lipschitz_derivation=found.derivation,
        ball_radius=found.radius,
        kantorovich=found.h,
    )

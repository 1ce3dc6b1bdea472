"""The four methods on one erasure, each at its own best setting, and what each may claim about the result.

`tr` is the service's: noise from the preset Δ*. The published ones take σ from their own Δ at the end, by the
exact trade-off, since the classical formula is not proved at ε = 1; that σ depends on the data, which none of
their analyses covers, and is granted here.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.evidence.clock import Clock, clocked
from bench.evidence.plan import EPSILON
from bench.evidence.problems import Problem, Rows
from certificate.privacy import sigma_for
from worker.engine.objective import Objective
from worker.engine.published import guo2020, tr_paper, zhang2024
from worker.engine.published.lissa import LissaSettings
from worker.engine.published.outcome import PublishedResult, convex, posterior

METHODS = ("guo2020", "zhang2024", "tr-paper", "tr")
DAMPINGS = (1e-3, 1e-2, 1e-1, 1.0)
LARGER = tr_paper.PaperSettings(steps=10, tau=1.0)  # the paper's CIFAR-10 column: nearer than its MNIST one
_MARGIN = 1.1


@dataclass(frozen=True, slots=True)
class Unlearned:
    """`distance` is what the noise covers, None without a valid certificate; `basis` says why, or on what."""

    w: Tensor
    distance: float | None
    basis: str
    posterior: float | None  # B1 or B2 at w
    sigma: float | None
    clock: Clock
    passes: float
    notes: dict[str, Any]


class Erasure:
    """One deletion from one problem; `retained` is a fresh objective at every call."""

    def __init__(self, problem: Problem, erased: Rows, seed: int, damping: float | None = None) -> None:
        self.problem, self.erased, self.seed = problem, erased, seed
        self.kept = problem.kept(erased)
        self.damping = damping
        self.floor: float | None = None  # of the curvature, once `tr` has certified one

    def retained(self) -> Objective:
        return self.problem.objective(self.kept)

    def solver(self) -> LissaSettings:
        """The published code's 1,000 steps; fewer chains and larger batches than its 10 of 128."""
        steps = 1000 if convex_tier(self.problem) else 300
        return LissaSettings(chains=1, steps=steps, batch=256, seed=self.seed)


def convex_tier(problem: Problem) -> bool:
    return problem.tier == "proved"


def unlearn(erasure: Erasure, method: str) -> Unlearned:
    return _METHODS[method](erasure)


def best_damping(erasure: Erasure) -> float:
    """Zhang et al. leave d to the user: here it is what ends with the smallest gradient, off the clock."""

    def left(damping: float) -> float:
        erasure.damping = damping
        found = _zhang(erasure)
        return math.inf if found.notes["diverged"] else float(found.notes["gradient_norm"])

    return min(DAMPINGS, key=left)


def released(w: Tensor, sigma: float, *, seed: int, draw: int) -> Tensor:
    """Noise from a seeded generator, so that a run can be repeated; the service's own never is."""
    z = np.random.default_rng([seed, draw, 0x1E7E]).standard_normal(len(w))
    return w + sigma * torch.from_numpy(z)


def _ours(erasure: Erasure) -> Unlearned:
    problem, objective = erasure.problem, erasure.retained()
    clock, found = clocked(lambda: problem.solve(objective, problem.start, seed=erasure.seed))
    w, proof = problem.certify(objective, found)
    erasure.floor = proof.floor
    return Unlearned(
        w=w,
        distance=None if proof.distance is None else problem.target,
        basis=proof.reason,
        posterior=proof.distance,
        sigma=None if proof.distance is None else _sigma(problem, problem.target),
        clock=clock + proof.clock,
        passes=found.passes + proof.passes,
        notes={"steps": len(found.steps), "seconds_of_certificate": proof.clock.wall},
    )


def _guo(erasure: Erasure) -> Unlearned:
    objective = erasure.retained()
    settings = guo2020.GuoSettings(tolerance=1e-6)
    count = len(erasure.erased)
    clock, found = clocked(
        lambda: guo2020.unlearn(objective, erasure.problem.start, erased=count, settings=settings)
    )
    notes = {"worst_case": _over(found.constants.get("worst-case"), erasure.problem.lam)}
    return _published(erasure, found, clock, notes)


def _zhang(erasure: Erasure) -> Unlearned:
    objective, start = erasure.retained(), erasure.problem.start
    damping = erasure.damping or DAMPINGS[1]
    norm = float(torch.linalg.vector_norm(start))
    # C must hold the retrained weights by a margin that B1 can prove at the start
    reach = _MARGIN * norm + (posterior(objective, start) or 0.0)
    settings = zhang2024.ZhangSettings(constraint=reach, damping=damping, solver=erasure.solver())
    clock, found = clocked(lambda: zhang2024.unlearn(objective, start, settings))
    known = found.constants.get("M")
    hindsight = (
        zhang2024.worst_case_distance(
            constraint=_MARGIN * norm,
            damping=damping,
            lowest=erasure.problem.lam,
            hessian_lipschitz=float(known),
            residual_gradient=0.0,
        )
        if known is not None
        else None
    )
    notes = {
        "damping": damping,
        "C": reach,
        "theorem_3_4_with_C_near_the_start": hindsight,
        "relative_residual": found.constants["relative_residual"],
        "diverged": found.verdict.outcome.name == "DIVERGED",
        "gradient_norm": found.gradient_norm,
    }
    return _published(erasure, found, clock, notes)


def _capped(erasure: Erasure) -> Unlearned:
    """For a network the floor that `tr` certified at its own end is lent to Assumption 2."""
    objective = erasure.retained()
    clock, found = clocked(
        lambda: tr_paper.unlearn(objective, erasure.problem.start, settings=LARGER, floor=erasure.floor)
    )
    counted = found.constants["steps_counted"]
    return _published(erasure, found, clock, {"steps": LARGER.steps, "steps_counted": counted})


def _published(erasure: Erasure, found: PublishedResult, clock: Clock, notes: dict[str, Any]) -> Unlearned:
    own = found.distance if found.certifiable else None
    lent = found.assumed if own is not None and not convex(erasure.retained()) else ()
    return Unlearned(
        w=found.w,
        distance=own,
        basis="; ".join([found.verdict.reason, *lent]),
        posterior=found.posterior,
        sigma=None if own is None else _sigma(erasure.problem, own),
        clock=clock,
        passes=found.passes,
        notes=notes,
    )


def _sigma(problem: Problem, distance: float) -> float:
    return sigma_for(epsilon=EPSILON, delta=problem.delta, distance=distance)


def _over(residual: object, floor: float) -> float | None:
    return float(residual) / floor if isinstance(residual, int | float) else None


_METHODS: dict[str, Callable[[Erasure], Unlearned]] = {
    "guo2020": _guo,
    "zhang2024": _zhang,
    "tr-paper": _capped,
    "tr": _ours,
}

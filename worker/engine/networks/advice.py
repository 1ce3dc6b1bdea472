"""Estimates, before a network is registered, of the smallest λ that seems certifiable and of its cost.

This is advice, not a certificate: everything is measured on a sample of the rows, at the minimiser for that
sample.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from worker.engine import noise
from worker.engine.bounds import needed_floor
from worker.engine.networks.architectures import AllCnn, Mlp
from worker.engine.networks.curvature import probe
from worker.engine.networks.lanczos import Gaussian, Route
from worker.engine.networks.lipschitz import hessian_lipschitz
from worker.engine.networks.objective import NetworkObjective, subsample
from worker.engine.trust_region import Solution, SolverSettings, minimise

_SMALLEST_GRADIENT = 4.0  # times the rounding bound: the gradient a solver can be expected to reach


@dataclass(frozen=True, slots=True)
class CertifiabilityEstimate:
    """Estimate for one λ on the sample.

    `needed` is the curvature floor that certification would require. `steps` is the number of Lanczos steps
    along `route`, the cheaper one, and is infinite if neither route seems to reach `needed`.
    """

    lam: float
    curvature: float  # estimate of λ_min(∇²f)
    lipschitz: float
    needed: float
    route: Route
    steps: float
    solve_products: int

    def within(self, budget: int) -> bool:
        """Return whether the estimated Lanczos steps fit into the budget."""
        return self.steps <= budget


@dataclass(frozen=True, slots=True)
class Advice:
    """All estimates made, and the one with the smallest λ that seems certifiable within the budget.

    `best` is None if not even the highest λ does.
    """

    best: CertifiabilityEstimate | None
    estimates: tuple[CertifiabilityEstimate, ...]


def smallest_certifiable_lambda(
    objective_at: Callable[[float], NetworkObjective],
    network: Mlp | AllCnn,
    start: Tensor,
    *,
    target: float,
    failure_probability: float,
    budget_products: int = 500,
    lowest: float = 1e-3,
    highest: float = 10.0,
    ratio: float = 1.3,
    rows: int = 1024,
    gaussian: Gaussian = noise.draw,
) -> Advice:
    """Bisect on log λ until two neighbours are within a factor `ratio`.

    Each λ is solved from `start` (d,) on at most `rows` rows.
    """
    estimates: list[CertifiabilityEstimate] = []

    def estimate(lam: float) -> CertifiabilityEstimate:
        sample = subsample(objective_at(lam), network, rows)
        estimates.append(
            estimate_certifiability(sample, network, start, target, failure_probability, gaussian)
        )
        return estimates[-1]

    best = estimate(highest)
    if not best.within(budget_products):
        return Advice(None, tuple(estimates))
    low = lowest
    least = estimate(lowest)
    if least.within(budget_products):
        return Advice(least, tuple(estimates))
    while best.lam > ratio * low:
        middle = estimate(math.sqrt(low * best.lam))
        if middle.within(budget_products):
            best = middle
        else:
            low = middle.lam
    return Advice(best, tuple(estimates))


def estimate_certifiability(
    objective: NetworkObjective,
    network: Mlp | AllCnn,
    start: Tensor,
    target: float,
    failure_probability: float,
    gaussian: Gaussian = noise.draw,
) -> CertifiabilityEstimate:
    """Solve on the sample, then estimate the curvature, M and the cost that certification would meet."""
    solution = _solve(objective, start)
    bound = hessian_lipschitz(objective, network, solution.w, 0.0)
    gradient = solution.gradient_norm + solution.rounding
    needed = needed_floor(gradient=gradient, lipschitz=bound.value, target=target)
    spectra = probe(objective, network, solution.w, gaussian=gaussian)
    expected = spectra.expected_steps(
        needed=needed,
        dimension=objective.dimension,
        failure_probability=failure_probability / 2,
        benefit=0.0,
    )
    route: Route = min(expected, key=lambda name: expected[name])
    products = sum(step.products for step in solution.steps)
    return CertifiabilityEstimate(
        objective.lam, spectra.floor, bound.value, needed, route, expected[route], products
    )


def _solve(objective: NetworkObjective, start: Tensor) -> Solution:
    """Return a point as close to a minimiser as rounding allows a solver to come. Nothing is certified."""
    smallest = _SMALLEST_GRADIENT * objective.evaluate(start).rounding
    settings = SolverSettings(max_steps=100, sample_fraction=1.0)
    return minimise(
        objective, start, target=smallest / objective.lam, working_floor=objective.lam, settings=settings
    )

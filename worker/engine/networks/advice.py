"""Before a network is registered: the smallest λ at which it seems certifiable, and what that would cost.

Advice, not a certificate: everything is measured on a sample of the rows, at that sample's own minimiser.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from worker.engine import noise
from worker.engine.bounds import needed_floor
from worker.engine.networks.architectures import AllCnn, Mlp
from worker.engine.networks.curvature import probe, sampled
from worker.engine.networks.lanczos import Gaussian, Route
from worker.engine.networks.lipschitz import hessian_lipschitz
from worker.engine.networks.objective import NetworkObjective
from worker.engine.trust_region import Solution, SolverSettings, minimise

_REACHED = 4.0  # times the rounding bound: how small a gradient a solver can be expected to reach


@dataclass(frozen=True, slots=True)
class Outlook:
    """One λ on the sample. `steps` of Lanczos by `route`, infinite if neither seems to lead to `needed`."""

    lam: float
    curvature: float  # about λ_min(∇²f)
    lipschitz: float
    needed: float
    route: Route
    steps: float
    solve_products: int

    def within(self, budget: int) -> bool:
        return self.steps <= budget


@dataclass(frozen=True, slots=True)
class Advice:
    """`best` is the smallest λ that seems certifiable within the budget; None: not even the highest does."""

    best: Outlook | None
    seen: tuple[Outlook, ...]


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
    """Bisection on log λ until two neighbours are within `ratio`; each λ is solved from `start` (d,)."""
    seen: list[Outlook] = []

    def look(lam: float) -> Outlook:
        sample = sampled(objective_at(lam), network, rows)
        seen.append(outlook(sample, network, start, target, failure_probability, gaussian))
        return seen[-1]

    best = look(highest)
    if not best.within(budget_products):
        return Advice(None, tuple(seen))
    low = lowest
    least = look(lowest)
    if least.within(budget_products):
        return Advice(least, tuple(seen))
    while best.lam > ratio * low:
        middle = look(math.sqrt(low * best.lam))
        if middle.within(budget_products):
            best = middle
        else:
            low = middle.lam
    return Advice(best, tuple(seen))


def outlook(
    objective: NetworkObjective,
    network: Mlp | AllCnn,
    start: Tensor,
    target: float,
    failure_probability: float,
    gaussian: Gaussian = noise.draw,
) -> Outlook:
    """Solve, look at both spectra and at M: what certification would meet."""
    solution = _solved(objective, start)
    bound = hessian_lipschitz(objective, network, solution.w, 0.0)
    gradient = solution.gradient_norm + solution.rounding
    needed = needed_floor(gradient=gradient, lipschitz=bound.value, target=target)
    found = probe(objective, network, solution.w, gaussian=gaussian)
    expected = found.expected(
        needed=needed,
        dimension=objective.dimension,
        failure_probability=failure_probability / 2,
        benefit=0.0,
    )
    route: Route = min(expected, key=lambda name: expected[name])
    products = sum(step.products for step in solution.steps)
    return Outlook(objective.lam, found.floor, bound.value, needed, route, expected[route], products)


def _solved(objective: NetworkObjective, start: Tensor) -> Solution:
    """As near a minimiser as rounding lets a solver come; nothing is certified."""
    smallest = _REACHED * objective.evaluate(start).rounding
    settings = SolverSettings(max_steps=100, sample_fraction=1.0)
    return minimise(
        objective, start, target=smallest / objective.lam, working_floor=objective.lam, settings=settings
    )

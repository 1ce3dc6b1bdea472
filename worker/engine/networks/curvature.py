"""A proven lower bound μ₀ on the Hessian's eigenvalues at a point, by the cheaper of two routes.

Direct: Lanczos on ∇²f. Split: ∇²f = GGN + S + λI with GGN ⪰ 0, so λ_min(∇²f) ≥ λ + λ_min(S), and S has a
small range. A probe on a sample of the rows chooses the route. It certifies nothing and spends no
probability. docs/maths.md, section 8, has the proof.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from worker.engine import noise
from worker.engine.networks.lanczos import (
    FailureBudget,
    Gaussian,
    Lanczos,
    LanczosRun,
    Route,
    floor_of,
    steps_for,
)
from worker.engine.networks.objective import Network, NetworkObjective, subsample

_PROBE_ROWS = 2048
_PROBE_STEPS = {"direct": 60, "split": 25}
_BENEFIT = (
    0.2  # of S's range: how much lower the smallest eigenvalue of a sample may be than that of all rows
)
_MOST_RUNS = 40
_LAST_RESORT = 60  # products spent to report the shortfall if the probe sees no route


@dataclass(frozen=True, slots=True)
class Spectrum:
    """Extreme Ritz values of ∇²f, or of S + λI, on a sample: an estimate of the spectrum."""

    least: float
    most: float

    @property
    def width(self) -> float:
        """Range of the spectrum."""
        return self.most - self.least


@dataclass(frozen=True, slots=True)
class Probe:
    """Estimated spectra of both routes on a sample, and their cost in passes over all rows."""

    direct: Spectrum
    split: Spectrum
    passes: float

    @property
    def floor(self) -> float:
        """Estimate of λ_min(∇²f)."""
        return max(self.direct.least, self.split.least)

    def expected_steps(
        self, *, needed: float, dimension: int, failure_probability: float, benefit: float = _BENEFIT
    ) -> dict[Route, float]:
        """Return the products each route is expected to take, infinite if it seems not to reach `needed`.

        The spectrum of a sample is wider than that of all rows, so `benefit` lets a route be tried that the
        sample puts just out of reach.
        """
        spectra: dict[Route, Spectrum] = {"split": self.split, "direct": self.direct}
        steps: dict[Route, float] = {}
        for route, spectrum in spectra.items():
            least = steps_for(
                excess=spectrum.least - needed + benefit * self.split.width,
                width=spectrum.width,
                dimension=dimension,
                failure_probability=failure_probability,
            )
            steps[route] = math.inf if least is None else least
        return steps


@dataclass(frozen=True, slots=True)
class CurvatureResult:
    """The best certified floor, -inf if there is none, and every Lanczos run that spent probability."""

    floor: float
    needed: float
    runs: tuple[LanczosRun, ...]
    probe: Probe
    passes: float
    cancelled: bool = False

    @property
    def enough(self) -> bool:
        """Whether the floor reaches `needed`."""
        return self.floor >= self.needed

    @property
    def route(self) -> Route | None:
        """The route of the last run, or None without a run."""
        return self.runs[-1].route if self.runs else None


def probe(
    objective: NetworkObjective, network: Network, w: Tensor, *, gaussian: Gaussian = noise.draw
) -> Probe:
    """Estimate both spectra on at most 2,048 rows spread along the data."""
    sample = subsample(objective, network, _PROBE_ROWS)
    fraction = sample.total / objective.total
    spectra, products = [], 0
    for steps, operator, offset in (
        (_PROBE_STEPS["direct"], sample.hessian(w), 0.0),
        (_PROBE_STEPS["split"], sample.split(w), objective.lam),
    ):
        lanczos = Lanczos(
            operator.product, objective.dimension, gaussian=gaussian, reduce=objective.reduce, device=w.device
        )
        lanczos.extend(steps)
        values = lanczos.ritz_values() or (math.nan,)
        spectra.append(Spectrum(min(values) + offset, max(values) + offset))
        products += lanczos.products
    return Probe(spectra[0], spectra[1], products * fraction)


def curvature_floor(
    objective: NetworkObjective,
    network: Network,
    w: Tensor,
    *,
    failure_probability: float,
    needed: float,
    budget_products: int = 2000,
    rounding: float = 0.0,
    probed: Probe | None = None,
    gaussian: Gaussian = noise.draw,
    cancelled: Callable[[], bool] | None = None,
) -> CurvatureResult:
    """Certify a floor of at least `needed`, or return the best one within the budget.

    `rounding` bounds the rounding error of a product with a unit vector. Every recorded run spends its own
    p_j, half of what is left of `failure_probability`. `probed` is a probe at a nearby point, whose passes
    the caller has counted already.
    """
    spectra = probed or probe(objective, network, w, gaussian=gaussian)
    search = _Search(objective, w, FailureBudget(failure_probability), needed, rounding, gaussian, cancelled)
    expected = spectra.expected_steps(
        needed=needed, dimension=objective.dimension, failure_probability=search.failure_budget.next
    )
    for route in sorted(expected, key=lambda name: expected[name]):
        left = budget_products - search.products
        if search.cancelled or search.floor >= needed or left < 1:
            break
        if math.isfinite(expected[route]):
            search.follow(route, left, rival=_other(expected, route))
    if not search.runs and not search.cancelled:  # report by how much the floor is missed
        search.follow(_higher_route(spectra), min(_LAST_RESORT, budget_products), rival=math.inf)
    return CurvatureResult(
        floor=search.floor,
        needed=needed,
        runs=tuple(search.runs),
        probe=spectra,
        passes=(0.0 if probed else spectra.passes) + search.products,
        cancelled=search.cancelled,
    )


def _other(expected: dict[Route, float], route: Route) -> float:
    return expected["direct" if route == "split" else "split"]


def _higher_route(spectra: Probe) -> Route:
    """Return the route whose estimated spectrum lies higher."""
    return "split" if spectra.split.least >= spectra.direct.least else "direct"


class _Search:
    """State of the search over both routes: runs recorded, best floor and products spent."""

    def __init__(
        self,
        objective: NetworkObjective,
        w: Tensor,
        failure_budget: FailureBudget,
        needed: float,
        rounding: float,
        gaussian: Gaussian,
        cancelled: Callable[[], bool] | None,
    ) -> None:
        self.objective, self.w, self.failure_budget, self.needed = objective, w, failure_budget, needed
        self.rounding, self.gaussian, self._cancelled = rounding, gaussian, cancelled
        self.runs: list[LanczosRun] = []
        self.floor = -math.inf
        self.products = 0
        self.cancelled = False

    def follow(self, route: Route, budget: int, *, rival: float) -> None:
        """Grow one Krylov space until its Ritz values prove enough, or show that they will not.

        Choosing the step count k from the Ritz values costs no extra probability: with one start, the
        failures at all k for the same p_j are a single event (docs/maths.md, section 8). The route is
        abandoned when it needs more steps than the budget allows, or than the other route, `rival`, is
        expected to take. The number needed can only grow from there.
        """
        lanczos = self._start(route)
        offset = 0.0 if route == "direct" else self.objective.lam
        before, steps = self.products, 2
        while True:
            finite = lanczos.extend(steps)
            self.products = before + lanczos.products
            if not finite:
                self.cancelled = True
                return
            needed_steps = self._steps_needed(lanczos, offset)
            reached = lanczos.exhausted or needed_steps <= steps
            if reached and math.isfinite(needed_steps):
                self._record_run(lanczos, route, max(steps, int(needed_steps)), offset)
                if self.floor >= self.needed or len(self.runs) >= _MOST_RUNS:
                    return
                steps = math.ceil(1.05 * max(steps, needed_steps)) if lanczos.exhausted else steps
            elif lanczos.exhausted or needed_steps > min(budget, steps + 2 * rival) or steps >= budget:
                self._record_run(lanczos, route, steps, offset)
                return
            steps = min(max(steps + 1, math.ceil(1.03 * steps)), budget)

    def _start(self, route: Route) -> Lanczos:
        operator = self.objective.hessian(self.w) if route == "direct" else self.objective.split(self.w)
        return Lanczos(
            self._interruptible(operator.product),
            self.objective.dimension,
            gaussian=self.gaussian,
            rounding=self.rounding,
            reduce=self.objective.reduce,
            device=self.w.device,
        )

    def _steps_needed(self, lanczos: Lanczos, offset: float) -> float:
        """Return the steps after which Ritz values like these would prove the needed floor, or infinity."""
        least, most = lanczos.extremes()
        margin = 2 * self.rounding * math.sqrt(len(lanczos.diagonal)) + 1e-9 * max(abs(least), abs(most))
        steps = steps_for(
            excess=least + offset - margin - self.needed,
            width=most - least,
            dimension=self.objective.dimension,
            failure_probability=self.failure_budget.next,
        )
        return math.inf if steps is None else steps

    def _record_run(self, lanczos: Lanczos, route: Route, steps: int, offset: float) -> None:
        """Spend a p_j on the floor that these steps prove."""
        run = lanczos.run(route, steps, self.failure_budget.spend())
        self.runs.append(run)
        floor = floor_of(run, self.objective.dimension)
        if floor is not None:
            self.floor = max(self.floor, floor + offset - math.ulp(offset))

    def _interruptible(self, product: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda v: v * math.nan if self._cancelled is not None and self._cancelled() else product(v)

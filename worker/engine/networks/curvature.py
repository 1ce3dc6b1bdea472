"""μ₀: a proven floor under the Hessian's eigenvalues at a point, by the cheaper of two routes.

Direct: Lanczos on ∇²f. Split: ∇²f = GGN + S + λI with GGN ⪰ 0, so λ_min(∇²f) ≥ λ + λ_min(S), and S has a
small range. A probe on a sample of the rows steers; it certifies nothing and spends no probability.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from worker.engine import noise
from worker.engine.networks.lanczos import (
    Allowance,
    Gaussian,
    Lanczos,
    LanczosRun,
    Route,
    floor_of,
    steps_for,
)
from worker.engine.networks.objective import Network, NetworkObjective
from worker.engine.rows import ArrayRows

_PROBE_ROWS = 2048
_PROBE_STEPS = {"direct": 60, "split": 25}
_BENEFIT = 0.2  # of S's range: how much lower a sample's least eigenvalue may lie than that of all rows
_MOST_LOOKS = 40
_LAST_RESORT = 60  # products spent on saying by how much a floor is missed when the probe sees no way


@dataclass(frozen=True, slots=True)
class Spectrum:
    """Extreme Ritz values of ∇²f - or of S + λI - on a sample: an estimate."""

    least: float
    most: float

    @property
    def width(self) -> float:
        return self.most - self.least


@dataclass(frozen=True, slots=True)
class Probe:
    """What steers: both spectra on a sample, and the passes over all rows it cost."""

    direct: Spectrum
    split: Spectrum
    passes: float

    @property
    def floor(self) -> float:
        """About λ_min(∇²f)."""
        return max(self.direct.least, self.split.least)

    def expected(
        self, *, needed: float, dimension: int, failure_probability: float, benefit: float = _BENEFIT
    ) -> dict[Route, float]:
        """Products each route is expected to take; infinite if it seems not to lead there.

        A sample's spectrum is wider than that of all rows: a route that it puts just out of reach is tried.
        """
        spectra: dict[Route, Spectrum] = {"split": self.split, "direct": self.direct}
        steps: dict[Route, float] = {}
        for route, spectrum in spectra.items():
            found = steps_for(
                excess=spectrum.least - needed + benefit * self.split.width,
                width=spectrum.width,
                dimension=dimension,
                failure_probability=failure_probability,
            )
            steps[route] = math.inf if found is None else found
        return steps


@dataclass(frozen=True, slots=True)
class CurvatureResult:
    """`floor` is the best certified, -inf if none; every look at a Krylov space is among `runs`."""

    floor: float
    needed: float
    runs: tuple[LanczosRun, ...]
    probe: Probe
    passes: float
    cancelled: bool = False

    @property
    def enough(self) -> bool:
        return self.floor >= self.needed

    @property
    def route(self) -> Route | None:
        return self.runs[-1].route if self.runs else None


def probe(
    objective: NetworkObjective, network: Network, w: Tensor, *, gaussian: Gaussian = noise.draw
) -> Probe:
    """Both spectra on at most 2,048 rows spread along the data."""
    sample = sampled(objective, network, _PROBE_ROWS)
    fraction = sample.total / objective.total
    found, products = [], 0
    for steps, operator, shift in (
        (_PROBE_STEPS["direct"], sample.hessian(w), 0.0),
        (_PROBE_STEPS["split"], sample.split(w), objective.lam),
    ):
        lanczos = Lanczos(
            operator.product, objective.dimension, gaussian=gaussian, reduce=objective.reduce, device=w.device
        )
        lanczos.extend(steps)
        values = lanczos.ritz_values() or (math.nan,)
        found.append(Spectrum(min(values) + shift, max(values) + shift))
        products += lanczos.products
    return Probe(found[0], found[1], products * fraction)


def sampled(objective: NetworkObjective, network: Network, rows: int) -> NetworkObjective:
    """The same objective on some of the rows, evenly along the data."""
    count = min(rows, objective.rows.count)
    indices = torch.arange(count) * objective.rows.count // count
    features, targets = objective.rows.sample(indices)
    return NetworkObjective(
        ArrayRows(features, targets),
        network,
        objective.lam,
        objective.anchor,
        reduce=objective.reduce,
        device=objective.device,
    )


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
    """A floor of at least `needed`, or the best within the budget; `rounding` is a product's, for a unit v.

    Every look spends its own p_j of `failure_probability`, halving what is left. `probed` is a probe of a
    point nearby; its passes are its maker's to count.
    """
    seen = probed or probe(objective, network, w, gaussian=gaussian)
    search = _Search(objective, w, Allowance(failure_probability), needed, rounding, gaussian, cancelled)
    expected = seen.expected(
        needed=needed, dimension=objective.dimension, failure_probability=search.allowance.next
    )
    for route in sorted(expected, key=lambda name: expected[name]):
        left = budget_products - search.products
        if search.cancelled or search.floor >= needed or left < 1:
            break
        if math.isfinite(expected[route]):
            search.follow(route, left, rival=_other(expected, route))
    if not search.runs and not search.cancelled:  # say by how much the floor is missed
        search.follow(_nearer(seen), min(_LAST_RESORT, budget_products), rival=math.inf)
    return CurvatureResult(
        floor=search.floor,
        needed=needed,
        runs=tuple(search.runs),
        probe=seen,
        passes=(0.0 if probed else seen.passes) + search.products,
        cancelled=search.cancelled,
    )


def _other(expected: dict[Route, float], route: Route) -> float:
    return expected["direct" if route == "split" else "split"]


def _nearer(seen: Probe) -> Route:
    return "split" if seen.split.least >= seen.direct.least else "direct"


class _Search:
    """Looks taken so far, over both routes."""

    def __init__(
        self,
        objective: NetworkObjective,
        w: Tensor,
        allowance: Allowance,
        needed: float,
        rounding: float,
        gaussian: Gaussian,
        cancelled: Callable[[], bool] | None,
    ) -> None:
        self.objective, self.w, self.allowance, self.needed = objective, w, allowance, needed
        self.rounding, self.gaussian, self._cancelled = rounding, gaussian, cancelled
        self.runs: list[LanczosRun] = []
        self.floor = -math.inf
        self.products = 0
        self.cancelled = False

    def follow(self, route: Route, budget: int, *, rival: float) -> None:
        """One start, grown until its Ritz values prove enough, or show that they will not.

        Waiting for the k to look at is no selection to be paid for: with one start, the failures at all k for
        the same p_j are one event (docs/maths.md, section 8). Given up when more steps are wanted than the
        budget has or the other route, `rival`, is expected to take: from here on they can only become more.
        """
        lanczos = self._start(route)
        shift = 0.0 if route == "direct" else self.objective.lam
        before, steps = self.products, 2
        while True:
            whole = lanczos.extend(steps)
            self.products = before + lanczos.products
            if not whole:
                self.cancelled = True
                return
            wanted = self._wanted(lanczos, shift)
            reached = lanczos.exhausted or wanted <= steps
            if reached and math.isfinite(wanted):
                self._look(lanczos, route, max(steps, int(wanted)), shift)
                if self.floor >= self.needed or len(self.runs) >= _MOST_LOOKS:
                    return
                steps = math.ceil(1.05 * max(steps, wanted)) if lanczos.exhausted else steps
            elif lanczos.exhausted or wanted > min(budget, steps + 2 * rival) or steps >= budget:
                self._look(lanczos, route, steps, shift)
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

    def _wanted(self, lanczos: Lanczos, shift: float) -> float:
        """Steps after which Ritz values like these would prove what is needed; infinite: never."""
        least, most = lanczos.extremes()
        margin = 2 * self.rounding * math.sqrt(len(lanczos.diagonal)) + 1e-9 * max(abs(least), abs(most))
        found = steps_for(
            excess=least + shift - margin - self.needed,
            width=most - least,
            dimension=self.objective.dimension,
            failure_probability=self.allowance.next,
        )
        return math.inf if found is None else found

    def _look(self, lanczos: Lanczos, route: Route, steps: int, shift: float) -> None:
        """Spend a p_j on what these steps prove."""
        run = lanczos.run(route, steps, self.allowance.spend())
        self.runs.append(run)
        found = floor_of(run, self.objective.dimension)
        if found is not None:
            self.floor = max(self.floor, found + shift - math.ulp(shift))

    def _interruptible(self, product: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda v: v * math.nan if self._cancelled is not None and self._cancelled() else product(v)

"""The curvature floor: the probability of Kuczyński & Woźniakowski, rounding, and bookkeeping."""

import math
from collections.abc import Callable
from dataclasses import asdict

import pytest
import torch
from torch import Tensor

from lethe.certificate.evidence import LanczosRun as RecordedRun
from lethe.certificate.evidence_check import curvature_floor as recomputed_floor
from tests.unit.engine.certified_networks import seeded
from worker.engine.networks.lanczos import FailureBudget, Lanczos, floor_of, krylov_error, steps_for

D = 40


def chebyshev(k: int, p: float) -> Tensor:
    """Return a spectrum that nearly attains the bound: one eigenvalue apart from the others."""
    epsilon = krylov_error(steps=k, dimension=D, failure_probability=p)
    nodes = (1 - epsilon) * torch.sin(torch.arange(k) * math.pi / (2 * k - 1)).double() ** 2
    bulk = nodes[torch.arange(D - 1) % k]
    return torch.cat([bulk, torch.ones(1, dtype=torch.float64)]).neg()


SPECTRA = {
    "even": torch.linspace(0, 1, D, dtype=torch.float64),
    "one below": torch.cat([torch.tensor([-1.0]), torch.linspace(1, 2, D - 1)]).double(),
    "crowded below": torch.linspace(0, 1, D, dtype=torch.float64) ** 4,
    "decades": torch.logspace(-6, 2, D, dtype=torch.float64),
    "near twins below": torch.cat([torch.tensor([0.0, 1e-4]), torch.linspace(0.5, 1, D - 2)]).double(),
    "worst for 8 steps": chebyshev(8, 0.2),
}


@pytest.mark.parametrize("spectrum", SPECTRA.values(), ids=SPECTRA.keys())
def test_floors_fail_no_more_often_than_claimed(spectrum: Tensor) -> None:
    """A trial fails if the bound fails at any k, for one p per start (docs/maths.md, section 8)."""
    p, trials = 0.2, 120
    least, failures, looks = float(spectrum.min()), 0, 0
    gaussian = seeded(1)
    for _ in range(trials):
        lanczos = Lanczos(lambda v: spectrum * v, D, gaussian=gaussian)
        wrong = False
        for steps in (6, 8, 10, 13):
            lanczos.extend(steps)
            floor = floor_of(lanczos.run("direct", steps, p), D)
            looks += floor is not None
            wrong |= floor is not None and floor > least
        failures += wrong
    assert looks >= 2 * trials
    assert failures <= trials * p / 2 + 3 * math.sqrt(trials * p)


def test_the_bound_is_not_vacuous() -> None:
    """On the worst-case spectrum Ritz values alone are far off, and half of ε_k would be wrong."""
    spectrum, gaussian = SPECTRA["worst for 8 steps"], seeded(2)
    epsilon = krylov_error(steps=8, dimension=D, failure_probability=0.2)
    misses = []
    for _ in range(100):
        lanczos = Lanczos(lambda v: spectrum * v, D, gaussian=gaussian)
        lanczos.extend(8)
        misses.append((lanczos.extremes()[0] - float(spectrum.min())) / (epsilon * float(spectrum.max() + 1)))
    assert max(misses) > 0.5
    assert sum(miss > 1e-6 for miss in misses) > 80


def test_all_steps_find_the_spectrum_itself() -> None:
    matrix = torch.randn(D, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    matrix = matrix + matrix.T
    lanczos = Lanczos(lambda v: matrix @ v, D, gaussian=seeded(3))
    lanczos.extend(10 * D)
    assert lanczos.exhausted
    assert lanczos.products == D
    exact = torch.linalg.eigvalsh(matrix)
    assert torch.tensor(lanczos.ritz_values()) == pytest.approx(exact.tolist(), abs=1e-9)
    run = lanczos.run("direct", 10**6, 1e-9)
    floor = floor_of(run, D)
    assert floor is not None
    assert float(exact[0]) - 1e-5 < floor < float(exact[0])


@pytest.mark.parametrize("error", [1e-10, 1e-6, 1e-3])
def test_slack_covers_products_that_are_off(error: float) -> None:
    """Errors of the products raise every Ritz value, while the floor would otherwise hold to 1e-12."""
    spectrum = torch.cat([torch.tensor([0.5]), torch.ones(D - 1)]).double()
    lanczos = Lanczos(lambda v: (spectrum + error) * v, D, gaussian=seeded(4), rounding=error)
    lanczos.extend(D)
    run = lanczos.run("direct", 10**7, 1e-6)
    floor = floor_of(run, D)
    assert floor is not None
    assert run.ritz_min > 0.5
    assert 0.5 - 20 * error - 1e-9 < floor < 0.5


def test_slack_sees_a_product_that_is_not_symmetric() -> None:
    """The defect is measured, not supplied by the caller."""
    generator = torch.Generator().manual_seed(0)
    skew = 1e-3 * torch.randn(D, D, generator=generator, dtype=torch.float64)
    matrix = torch.diag(SPECTRA["even"]) + skew - skew.T
    lanczos = Lanczos(lambda v: matrix @ v, D, gaussian=seeded(5))
    lanczos.extend(10)
    assert lanczos.run("direct", 10, 0.1).rounding_slack > 1e-3


@pytest.mark.parametrize(("steps", "p"), [(40, 1e-9), (90, 1e-3), (500, 1e-12)])
def test_the_verifier_recomputes_the_same_floor_or_a_higher_one(steps: int, p: float) -> None:
    spectrum = torch.linspace(-0.3, 20, 1200, dtype=torch.float64)
    lanczos = Lanczos(lambda v: spectrum * v, 1200, gaussian=seeded(6), rounding=1e-13)
    lanczos.extend(steps)
    run = lanczos.run("direct", steps, p)
    recorded = RecordedRun(**asdict(run))
    ours, theirs = floor_of(run, 1200), recomputed_floor(recorded, 1200)
    if ours is None:
        assert krylov_error(steps=steps, dimension=1200, failure_probability=p) >= 0.25
    else:
        assert theirs is not None
        assert theirs - 1e-11 * abs(theirs) - 1e-12 <= ours <= theirs


def test_planned_steps_are_just_enough() -> None:
    k = steps_for(excess=0.02, width=16.0, dimension=26_506, failure_probability=1e-9)
    assert k is not None
    for steps, enough in ((k, True), (k - 2, False)):
        epsilon = krylov_error(steps=steps, dimension=26_506, failure_probability=1e-9)
        assert (epsilon * 16 / (1 - 2 * epsilon) <= 0.02) is enough
    assert steps_for(excess=-0.1, width=1.0, dimension=10, failure_probability=0.1) is None


def test_any_number_of_looks_spends_less_than_allowed() -> None:
    allowance = FailureBudget(1e-9)
    assert math.fsum(allowance.spend() for _ in range(60)) <= 1e-9
    with pytest.raises(ValueError, match="between 0 and 1"):
        FailureBudget(0.0)


def test_a_cancelled_product_ends_the_run() -> None:
    lanczos = Lanczos(lambda v: v * math.nan, D, gaussian=seeded(7))
    assert not lanczos.extend(5)


def start_with(first: float) -> Callable[[int], torch.Tensor]:
    """Return a start with almost nothing of the first eigenvector. Later draws are ordinary."""
    gaussian, made = seeded(8), list[int]()

    def draw(count: int) -> torch.Tensor:
        normals = gaussian(count)
        if not made:
            normals[0] = first
        made.append(count)
        return normals

    return draw


@pytest.mark.parametrize("first", [0.0, 1e-15, 1e-12, 1e-9])
def test_a_space_that_seems_invariant_proves_no_more_than_the_steps_made(first: float) -> None:
    """Two clusters: after two steps the residual vanishes, and the smallest eigenvalue was not seen."""
    spectrum = torch.cat([torch.tensor([0.25]), torch.ones(19), torch.full((20,), 2.0**20)]).double()
    lanczos = Lanczos(lambda v: spectrum * v, D, gaussian=start_with(first))
    for steps in (2, 3, 4, 10, 30):
        lanczos.extend(steps)
        run = lanczos.run("direct", 10**6, 1e-9)
        assert run.steps == lanczos.products == steps
        assert len(run.ritz_values) == steps
        floor = floor_of(run, D)
        assert floor is None or floor <= 0.25
    lanczos.extend(D)
    assert lanczos.exhausted
    assert lanczos.extremes()[0] == pytest.approx(0.25, abs=1e-6)


def test_a_product_that_is_nothing_has_the_spectrum_zero() -> None:
    lanczos = Lanczos(torch.zeros_like, D, gaussian=seeded(9))
    assert lanczos.extend(D - 1)
    assert lanczos.extremes() == (0.0, 0.0)
    floor = floor_of(lanczos.run("split", D - 1, 1e-9), D)
    assert floor is not None
    assert -1e-12 < floor <= 0

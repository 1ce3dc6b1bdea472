"""What the baselines share: constants of losses, B1 as a second figure, noise from the achieved distance."""

import math

import pytest
import torch

from lethe.certificate.evidence import EvidenceRecord
from lethe.certificate.privacy import classical_sigma, sigma_for
from tests.unit.engine.baseline_problems import Wavy, dense_hessian, erasure
from tests.unit.engine.engine_problems import FAMILIES, make_problem, random_point
from worker.engine.baselines import guo2020, tr_paper, zhang2024
from worker.engine.baselines.lipschitz import LOGISTIC, SOFTMAX, row_facts
from worker.engine.baselines.lissa import LissaSettings
from worker.engine.baselines.result import BaselineResult, noise_last, posterior
from worker.engine.objective import Objective


def _softmax_curvature(z: torch.Tensor) -> torch.Tensor:
    p = torch.softmax(z, 0)
    return torch.diag(p) - torch.outer(p, p)


def test_the_softmax_constants_bound_every_sample_and_are_nearly_reached() -> None:
    generator = torch.Generator().manual_seed(0)
    change, curvature, slope = 0.0, 0.0, 0.0
    for size in (2, 3, 10):
        for _ in range(300):
            z = 2 * torch.randn(size, generator=generator, dtype=torch.float64)
            u = torch.randn(size, generator=generator, dtype=torch.float64)
            u *= 1e-3 / torch.linalg.vector_norm(u)
            difference = _softmax_curvature(z + u) - _softmax_curvature(z)
            change = max(change, float(torch.linalg.matrix_norm(difference, 2)) / 1e-3)
            curvature = max(curvature, float(torch.linalg.matrix_norm(_softmax_curvature(z), 2)))
            residual = torch.softmax(10 * z, 0)
            residual[0] -= 1
            slope = max(slope, float(torch.linalg.vector_norm(residual)))
    assert 0.9 * SOFTMAX.third < change <= SOFTMAX.third
    assert 0.9 * SOFTMAX.curvature < curvature <= SOFTMAX.curvature
    assert 0.9 * SOFTMAX.slope < slope <= SOFTMAX.slope


def test_the_logistic_third_derivative_is_below_the_published_quarter() -> None:
    z = torch.linspace(-10, 10, 2001, dtype=torch.float64)
    s = torch.sigmoid(z)
    assert float((s * (1 - s) * (1 - 2 * s)).abs().max()) == pytest.approx(1 / (6 * math.sqrt(3)), rel=1e-3)
    assert 1 / (6 * math.sqrt(3)) < LOGISTIC.third


@pytest.mark.parametrize("bias", [True, False])
def test_row_facts_are_those_of_the_dense_matrix(bias: bool) -> None:
    objective = make_problem("softmax", bias=bias)
    step = random_point(objective)
    x = objective.extended(torch.cat([x for x, _ in objective.chunks()]))
    lengths = torch.linalg.vector_norm(x, dim=1)
    middle = float(lengths.median())
    facts = row_facts(objective, step, row_bound=middle)
    assert facts.longer == int((lengths > middle).sum())
    assert facts.spectral == pytest.approx(float(torch.linalg.matrix_norm(x, 2)), rel=1e-6)
    image = float(torch.linalg.matrix_norm(objective.grouped(step) @ x.T))
    assert facts.image == pytest.approx(image, rel=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_b1_covers_the_truth_wherever_a_method_stopped(family: str) -> None:
    case = erasure(family)
    for result in _all(case.kept, case.start, case.erased):
        assert result.posterior == pytest.approx(posterior(case.kept, result.w))
        assert result.posterior is not None
        assert case.distance(result.w) <= result.posterior + 1e-9


def test_everything_reported_fits_the_evidence_record() -> None:
    case = erasure("ridge")  # C is infinite here, and a record holds no infinities
    for result in _all(case.kept, case.start, case.erased):
        record = EvidenceRecord(
            certificate_id="01890a5d-ac96-774b-bcce-b302099a8057",
            rule=result.method,
            gradient_norm=result.gradient_norm,
            rounding_error=result.rounding,
            distance=result.distance,
            posterior_distance=result.posterior,
            method=dict(result.constants),
            trace=(),
            shift=None,
            utility=None,
            solver={},
            salt="00" * 16,
        )
        assert record.method == dict(result.constants)


def test_a_loss_that_is_not_convex_has_no_second_figure_and_no_certificate() -> None:
    objective = Wavy(lam=0.5, waves=1.0)
    start = torch.ones(4, dtype=torch.float64)
    assert posterior(objective, start) is None
    for result in _all(objective, start, 1):
        assert result.posterior is None
        assert not result.certifiable
        assert result.distance == math.inf


def test_noise_last_is_classical_below_one_and_analytic_everywhere() -> None:
    half = noise_last(distance=2.0, epsilon=0.5, delta=1e-5, calibration="classical")
    assert half.sigma == classical_sigma(epsilon=0.5, delta=1e-5, distance=2.0)
    one = noise_last(distance=2.0, epsilon=1.0, delta=1e-5, calibration="classical")
    assert one.sigma is None
    assert one.reason is not None
    assert "ε < 1" in one.reason
    exact = noise_last(distance=2.0, epsilon=1.0, delta=1e-5, calibration="analytic")
    assert exact.sigma == sigma_for(epsilon=1.0, delta=1e-5, distance=2.0)
    for distance in (math.inf, 0.0, math.nan):
        assert noise_last(distance=distance, epsilon=0.5, delta=1e-5, calibration="analytic").sigma is None


def _all(kept: Objective, start: torch.Tensor, erased: int) -> list[BaselineResult]:
    solver = LissaSettings(chains=1, steps=200, batch=1000)
    return [
        tr_paper.unlearn(kept, start),
        guo2020.unlearn(kept, start, erased=erased),
        zhang2024.unlearn(kept, start, zhang2024.ZhangSettings(constraint=100.0, damping=0.1, solver=solver)),
    ]


def test_dense_twins_are_symmetric() -> None:
    objective = make_problem("softmax")
    dense = dense_hessian(objective, random_point(objective))
    assert float(torch.linalg.eigvalsh(dense)[0]) >= objective.lam * (1 - 1e-9)

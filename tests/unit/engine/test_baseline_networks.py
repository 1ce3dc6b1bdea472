"""The baselines on a network: which run, which refuse, and why."""

import math

import torch

from tests.unit.engine import linearised_problems
from tests.unit.engine.network_problems import dense_hessian, nearby, problem
from worker.engine.baselines import guo2020, tr_paper, zhang2024
from worker.engine.baselines.lissa import LissaSettings
from worker.engine.baselines.result import Outcome
from worker.engine.networks.architectures import Mlp
from worker.engine.trust_region import train

SPEC = Mlp((3, 4, 3), "tanh")
SOLVER = LissaSettings(chains=1, steps=200, batch=100)


def test_without_a_floor_or_constants_nothing_is_certified() -> None:
    objective = problem(SPEC, lam=1.0)
    start = nearby(objective)
    for result, outcome in (
        (tr_paper.unlearn(objective, start), Outcome.NO_FLOOR),
        (guo2020.unlearn(objective, start, erased=2), Outcome.NOT_CONVEX),
        (
            zhang2024.unlearn(
                objective, start, zhang2024.ZhangSettings(constraint=10.0, damping=0.1, solver=SOLVER)
            ),
            Outcome.NO_LIPSCHITZ,
        ),
    ):
        assert result.verdict.outcome is outcome
        assert not result.certifiable
        assert result.posterior is None
        assert objective.value(result.w) <= objective.value(start)


def test_with_a_floor_that_holds_corollary_one_covers_the_truth() -> None:
    objective = problem(SPEC, lam=4.0)
    start = nearby(objective, scale=0.2)
    truth = start
    for _ in range(30):
        truth = truth - torch.linalg.solve(dense_hessian(objective, truth), objective.gradient(truth))
    assert objective.certified_gradient(truth).norm < 1e-12
    # along the way from the start to the truth, and somewhat beyond
    floor = min(
        float(torch.linalg.eigvalsh(dense_hessian(objective, truth + share * (start - truth)))[0])
        for share in (-0.5, 0.0, 0.25, 0.5, 0.75, 1.0, 1.5)
    )
    for subproblem in ("cg", "lissa"):
        settings = tr_paper.PaperSettings(subproblem=subproblem, solver=SOLVER)
        result = tr_paper.unlearn(objective, start, settings=settings, floor=0.9 * floor)
        assert result.certifiable
        assert math.isfinite(result.distance)
        assert any("Assumption 2" in line for line in result.assumed)
        assert float(torch.linalg.vector_norm(result.w - truth)) <= result.distance


def test_a_linearised_network_is_convex_so_b1_holds_for_every_baseline() -> None:
    network, width = linearised_problems.NETWORKS["staged"]
    objective = linearised_problems.problem(network, width, n=20, lam=0.5)
    start = linearised_problems.nearby(objective, scale=0.1)
    exact = train(objective, target=1e-9).w
    lipschitz = zhang2024.Lipschitz(gradient=1e3, hessian=1e4)
    settings = zhang2024.ZhangSettings(
        constraint=1e3, damping=0.1, residual_gradient=0.0, lipschitz=lipschitz, solver=SOLVER
    )
    results = (
        tr_paper.unlearn(objective, start),
        guo2020.unlearn(objective, start, erased=2),
        zhang2024.unlearn(objective, start, settings),
    )
    for result in results:
        assert result.posterior is not None
        assert float(torch.linalg.vector_norm(result.w - exact)) <= result.posterior + 1e-9
    paper, guo, zhang = results
    assert paper.verdict.holds
    assert paper.constants["mu"] == 0.5
    assert paper.assumed == ()
    assert guo.verdict.outcome is Outcome.NO_LIPSCHITZ
    assert objective.value(guo.w) < objective.value(start)
    assert zhang.verdict.holds
    assert zhang.constants["lambda_min"] == 0.5

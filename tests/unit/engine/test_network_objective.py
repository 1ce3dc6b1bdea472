"""The network objective against dense results of torch.autograd, and the solver without a proven floor."""

import itertools
import math

import pytest
import torch
from torch.testing import assert_close

from tests.unit.engine.network_problems import TINY, dense, dense_hessian, nearby, problem, value
from worker.engine.networks.architectures import Mlp, ResNet18, Spec, initial_point
from worker.engine.networks.objective import NetworkObjective
from worker.engine.objective import Sampling
from worker.engine.rows import ArrayRows
from worker.engine.trust_region import Outcome, SolverSettings, minimise, train
from worker.engine.validation import EngineInputError

EXACT = SolverSettings(sample_fraction=1.0)


def named(spec: Spec) -> str:
    return f"{type(spec).__name__}-{getattr(spec, 'activation', '')}-{spec.outputs}"


@pytest.mark.parametrize("plugin", [False, True], ids=["explicit", "automatic"])
@pytest.mark.parametrize("spec", TINY, ids=named)
def test_value_gradient_and_products_are_those_of_autograd(spec: Spec, plugin: bool) -> None:
    objective = problem(spec, plugin=plugin)
    w = nearby(objective).requires_grad_()
    expected = value(objective, w)
    (gradient,) = torch.autograd.grad(expected, w)
    w = w.detach()
    assert objective.value(w) == pytest.approx(float(expected.detach()), rel=1e-13)
    assert_close(objective.gradient(w), gradient, rtol=0, atol=1e-13)
    assert_close(dense(objective.hessian(w).product, len(w)), dense_hessian(objective, w), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("spec", "plugin"), [(TINY[0], True), *((spec, False) for spec in TINY if spec.outputs != 2)]
)
def test_gauss_newton_and_the_rest_make_up_the_hessian(spec: Spec, plugin: bool) -> None:
    objective = problem(spec, plugin=plugin)
    w = nearby(objective)
    d = len(w)
    ggn = dense(lambda v: objective.ggn_product(w, v), d)
    rest = dense(objective.split(w).product, d)
    eye = torch.eye(d, dtype=torch.float64)
    assert_close(ggn + rest + objective.lam * eye, dense_hessian(objective, w), rtol=0, atol=1e-12)
    assert float(torch.linalg.eigvalsh((ggn + ggn.T) / 2).min()) > -1e-12
    assert float(torch.linalg.matrix_norm(rest)) > 1e-3  # a linear model would have none


def test_gauss_newton_is_the_jacobian_around_the_losss_curvature() -> None:
    objective = problem(TINY[0])
    w = nearby(objective)
    ((x, _),) = objective.rows.chunks(objective.rows.count)
    jacobian = torch.func.jacrev(lambda at: objective.logits(at, x))(w)  # (c, outputs, d)
    p = torch.softmax(objective.logits(w, x), 1)
    curvature = torch.diag_embed(p) - p[:, :, None] * p[:, None]
    expected = torch.einsum("cod,cop,cpe->de", jacobian, curvature, jacobian) / len(x)
    assert_close(dense(lambda v: objective.ggn_product(w, v), len(w)), expected, rtol=0, atol=1e-13)


def test_samples_average_to_the_exact_product() -> None:
    objective = problem(TINY[0], n=60)
    w, v = nearby(objective), torch.ones(objective.dimension, dtype=torch.float64)
    exact = objective.hvp(w, v)
    operators = [objective.hessian(w, Sampling(12, seed)) for seed in range(200)]
    products = torch.stack([operator.product(v) for operator in operators])
    spread = float(torch.linalg.vector_norm(products.std(0))) / math.sqrt(len(products))
    assert float(torch.linalg.vector_norm(products.mean(0) - exact)) < 4 * spread
    assert operators[0].fraction == pytest.approx(0.2)
    assert not torch.equal(products[0], products[1])


@pytest.mark.parametrize("spec", [TINY[0], TINY[5]], ids=named)
def test_chunks_change_nothing_but_rounding_and_bound_what_is_held(spec: Spec) -> None:
    whole = problem(spec, n=20)
    by_one = problem(spec, n=20, chunk_bytes=1)
    assert (whole.chunk_rows, by_one.chunk_rows) == (20, 1)
    assert max(len(y) for _, y in by_one.chunks()) == 1
    w, v = nearby(whole), torch.ones(whole.dimension, dtype=torch.float64)
    assert_close(by_one.gradient(w), whole.gradient(w), rtol=0, atol=1e-14)
    assert by_one.value(w) == pytest.approx(whole.value(w), rel=1e-13)
    for name in ("hessian", "split", "gauss_newton"):
        pair = [getattr(objective, name)(w).product(v) for objective in (by_one, whole)]
        assert_close(pair[0], pair[1], rtol=0, atol=1e-13)
    assert by_one.input_norms().largest == pytest.approx(whole.input_norms().largest)


def test_a_wider_network_gets_smaller_chunks() -> None:
    rows = ArrayRows(torch.zeros(5000, 8), torch.zeros(5000, dtype=torch.int64))
    sizes = []
    for hidden in (4, 400):
        spec = Mlp((8, hidden, 3))
        sizes.append(NetworkObjective(rows, spec, 0.1, initial_point(spec, 0), chunk_bytes=2**20).chunk_rows)
    assert sizes[0] > 10 * sizes[1]


def test_two_ranks_sum_to_one() -> None:
    spec = TINY[0]
    whole = problem(spec, n=20)
    ((x, y),) = whole.rows.chunks(20)
    w = nearby(whole)

    def rank(part: slice, other: slice) -> NetworkObjective:
        lone = NetworkObjective(ArrayRows(x[other], y[other]), spec, 0.1, whole.anchor)
        shares = iter((torch.tensor([float(len(y[other])), 1.0]).double(), _flat(lone, w)))
        return NetworkObjective(
            ArrayRows(x[part], y[part]), spec, 0.1, whole.anchor, reduce=lambda t: t + next(shares)
        )

    first = rank(slice(0, 13), slice(13, 20))
    assert_close(first.gradient(w), whole.gradient(w), rtol=0, atol=1e-14)
    assert first.total == 20


def _flat(objective: NetworkObjective, w: torch.Tensor) -> torch.Tensor:
    sums, chunks = objective._pass(w, torch.float64)
    head = torch.tensor([sums.loss, sums.evaluation, sums.mass, chunks], dtype=torch.float64)
    return torch.cat([head, sums.gradient])


@pytest.mark.parametrize("plugin", [False, True])
def test_an_objective_built_from_another_ones_module_is_the_same_function(plugin: bool) -> None:
    """Subclasses that evaluate on several ranks are built this way."""
    original = problem(TINY[0], plugin=plugin)
    again = NetworkObjective(original.rows, original.module, original.lam, original.anchor)
    w = nearby(original)
    assert (again.spec, again.shapes, again.total) == (original.spec, original.shapes, original.total)
    assert again.rounding_proven == original.rounding_proven == (not plugin)
    assert again.evaluate(w).norm == original.evaluate(w).norm
    assert torch.equal(again.hvp(w, w), original.hvp(w, w))


def test_norms_of_the_rows_are_rounded_up() -> None:
    objective = problem(TINY[0], n=9)
    ((x, _),) = objective.rows.chunks(9)
    norms = torch.linalg.vector_norm(x, dim=1)
    measured_norms = objective.input_norms(moments=3)
    assert float(norms.max()) < measured_norms.largest < float(norms.max()) * 1.0001
    for power, moment in enumerate(measured_norms.moments, start=1):
        assert float((norms**power).mean()) < moment < float((norms**power).mean()) * 1.0001


def test_parameters_go_flat_and_back() -> None:
    objective = problem(TINY[5])
    w = nearby(objective)
    assert torch.equal(objective.flatten(objective.unflatten(w)), w)
    parts = objective.unflatten(w)
    with pytest.raises(EngineInputError, match=r"head\.bias"):
        objective.flatten({name: part for name, part in parts.items() if name != "head.bias"})
    with pytest.raises(EngineInputError, match="shape"):
        objective.flatten(parts | {"head.bias": torch.zeros(7)})


def test_single_precision_is_near_and_certifies_nothing() -> None:
    objective = problem(TINY[0])
    w = nearby(objective)
    single, double = objective.evaluate(w, single=True), objective.evaluate(w)
    assert single.rounding == math.inf
    assert_close(single.gradient, double.gradient, rtol=0, atol=1e-5)
    assert double.norm <= double.scale + objective.lam * float((w - objective.anchor).norm())


@pytest.mark.parametrize("spec", [TINY[0], TINY[2], TINY[4], TINY[5]], ids=named)
def test_training_from_the_anchor_reaches_a_minimiser(spec: Spec) -> None:
    objective = problem(spec, n=40, lam=0.5)
    solution = train(objective, target=1e-7, settings=EXACT, working_floor=0.05)
    assert solution.outcome is Outcome.REACHED
    assert solution.gradient_norm + solution.rounding <= 0.05 * 1e-7
    assert solution.distance == math.inf  # the loop certifies nothing here
    hessian = dense_hessian(objective, solution.w)
    floor = float(torch.linalg.eigvalsh(hessian).min())
    newton = solution.w - torch.linalg.solve(hessian, objective.gradient(solution.w))
    assert floor > 0
    assert float(torch.linalg.vector_norm(newton - solution.w)) <= 1.01 * solution.gradient_norm / floor


def test_unlearning_and_retraining_meet() -> None:
    full = problem(TINY[0], n=60, lam=0.3)
    ((x, y),) = full.rows.chunks(60)
    kept = NetworkObjective(ArrayRows(x[:45], y[:45]), TINY[0], 0.3, full.anchor)
    before = train(full, target=1e-6, settings=EXACT, working_floor=0.05).w
    unlearned = minimise(kept, before + 1e-4, target=1e-7, settings=EXACT, working_floor=0.05)
    retrained = train(kept, target=1e-7, settings=EXACT, working_floor=0.05)
    assert unlearned.outcome is retrained.outcome is Outcome.REACHED
    assert float(torch.linalg.vector_norm(unlearned.w - retrained.w)) <= 2e-7
    assert float(torch.linalg.vector_norm(unlearned.w - before)) > 1e-3


def test_sampled_steps_reach_the_same_point() -> None:
    objective = problem(TINY[0], n=400, lam=0.3)
    sampled = SolverSettings(sample_fraction=0.2, least_sample=50)
    exact = train(objective, target=1e-6, settings=EXACT, working_floor=0.05)
    quick = train(objective, target=1e-6, settings=sampled, working_floor=0.05)
    assert quick.outcome is Outcome.REACHED
    assert quick.rounding < 1e-9
    assert any(not float(b.passes - a.passes).is_integer() for a, b in itertools.pairwise(quick.steps))
    assert float(torch.linalg.vector_norm(quick.w - exact.w)) <= 2e-6


def test_negative_curvature_is_left_behind() -> None:
    objective = problem(TINY[2], n=12, lam=0.02, scale=2.0)
    start = next(
        w
        for w in (nearby(objective, seed, 3.0) for seed in range(50))
        if float(torch.linalg.eigvalsh(dense_hessian(objective, w)).min()) < -0.05
    )
    solution = minimise(objective, start, target=1e-3, settings=EXACT, working_floor=0.02)
    assert solution.outcome is Outcome.REACHED
    assert float(torch.linalg.eigvalsh(dense_hessian(objective, solution.w)).min()) > 0
    assert objective.value(solution.w) < objective.value(start)


def test_without_a_proven_floor_a_working_one_is_needed_and_never_certifies() -> None:
    objective = problem(TINY[0])
    assert objective.curvature_floor == 0
    for floor in (None, 0.0, -1.0, math.inf, math.nan):
        with pytest.raises(EngineInputError, match="working floor"):
            minimise(objective, objective.anchor, target=1e-3, working_floor=floor)
    assert Outcome.CERTIFIED is not train(objective, target=1e3, working_floor=1.0).outcome


def test_a_plugin_has_no_bound_and_is_measured_only_when_asked() -> None:
    plain, asked = problem(TINY[0], plugin=True), problem(TINY[0], plugin=True, measured=True)
    w = nearby(plain)
    assert plain.evaluate(w).rounding == asked.certified_gradient(w).rounding == math.inf
    assert 0 < asked.evaluate(w).rounding < 1e-12
    assert not asked.rounding_proven
    assert problem(TINY[0]).rounding_proven
    assert train(asked, target=1e-5, settings=EXACT, working_floor=0.05).outcome is Outcome.REACHED


def test_a_residual_network_has_products_too() -> None:
    spec = ResNet18((1, 4, 4), 2, base_width=2, groups=1)
    objective = problem(spec, n=3)
    w, v = objective.anchor, nearby(objective, scale=1e-2) - objective.anchor
    step = 1e-4 / float(v.norm())
    slope = (objective.gradient(w + step * v) - objective.gradient(w - step * v)) / (2 * step)
    assert_close(objective.hvp(w, v), slope, rtol=1e-4, atol=1e-6)
    assert objective.evaluate(w).rounding == math.inf


def test_rows_and_networks_that_do_not_fit_are_refused() -> None:
    spec = Mlp((3, 4, 3))
    good, labels = torch.zeros(4, 3), torch.tensor([0, 1, 2, 1])
    anchor = initial_point(spec, 0)
    with pytest.raises(EngineInputError, match="takes 3 features"):
        NetworkObjective(ArrayRows(torch.zeros(4, 2), labels), spec, 0.1, anchor)
    with pytest.raises(EngineInputError, match="3 outputs"):
        NetworkObjective(ArrayRows(good, labels), spec, 0.1, anchor, classes=4)
    with pytest.raises(EngineInputError, match="row 2"):
        NetworkObjective(ArrayRows(good, torch.tensor([0, 1, 3, 1])), spec, 0.1, anchor).value(anchor)
    with pytest.raises(EngineInputError, match="row 0"):
        NetworkObjective(ArrayRows(good / 0, labels), spec, 0.1, anchor).value(anchor)

"""The solver: its certificates hold on every problem, and every way of stopping is reported."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.engine.engine_problems import FAMILIES, make_problem, random_point
from worker.engine.families import Logistic, Ridge, Softmax
from worker.engine.linear import LinearObjective
from worker.engine.objective import Evaluation
from worker.engine.rows import ArrayRows
from worker.engine.subproblem import cauchy
from worker.engine.trust_region import Outcome, SolverSettings, Step, minimise, train

EXACT = SolverSettings(sample_fraction=1.0)


def minimiser(objective: LinearObjective) -> tuple[torch.Tensor, float]:
    """Return ŵ from dense Newton steps in float64, and a bound on its error."""
    w = train(objective, target=1e-3 / objective.lam, settings=EXACT).w
    best, best_distance = w, math.inf
    for _ in range(40):
        here = objective.evaluate(w)
        distance = (here.norm + here.rounding) / objective.lam
        if distance < best_distance / 2:
            best, best_distance = w, distance
        elif best_distance < 1e-9 / objective.lam:
            break
        operator = objective.hessian(w)
        dense = torch.stack([operator.product(unit) for unit in torch.eye(len(w), dtype=torch.float64)])
        step = torch.linalg.solve((dense + dense.T) / 2, here.gradient)
        decrement = float(step @ here.gradient)
        w = w - step / (1 + math.sqrt(max(0.0, decrement)) if decrement > 0.1 else 1)
    return best, best_distance


def separable(seed: int, n: int, width: int, lam: float) -> LinearObjective:
    """Return labels that a hyperplane separates, for which the loss alone has no minimiser."""
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((n, width))
    return Logistic(ArrayRows(features, (features[:, 0] > 0).astype(np.int64)), lam)


@given(
    family=st.sampled_from([*FAMILIES, "separable"]),
    seed=st.integers(0, 100_000),
    n=st.integers(1, 40),
    width=st.integers(1, 6),
    lam_power=st.floats(-6, 1),
    target_power=st.floats(-4, 0),
)
@settings(max_examples=200, deadline=None)
def test_the_certified_distance_is_never_below_the_true_one(
    family: str, seed: int, n: int, width: int, lam_power: float, target_power: float
) -> None:
    lam = 10**lam_power
    if family == "separable":
        objective = separable(seed, n, width, lam)
    else:
        objective = make_problem(family, n=n, width=width, lam=lam, seed=seed, classes=3)
    solution = minimise(objective, random_point(objective, seed), target=10**target_power)
    truth, slack = minimiser(objective)
    true = float(torch.linalg.vector_norm(solution.w - truth))
    assert solution.outcome is Outcome.CERTIFIED
    assert solution.distance <= 10**target_power
    assert true <= solution.distance + slack


def test_the_bound_holds_away_from_the_minimum_too() -> None:
    for family in FAMILIES:
        objective = make_problem(family)
        truth, slack = minimiser(objective)
        for seed in range(20):
            w = truth + random_point(objective, seed, scale=10.0 ** (seed % 7 - 5))
            here = objective.certified_gradient(w)
            true = float(torch.linalg.vector_norm(w - truth))
            assert true <= (here.norm + here.rounding) / objective.lam + slack


def test_a_quadratic_is_solved_in_one_step() -> None:
    objective = make_problem("ridge", n=50, width=8)
    solution = train(objective, target=1e-4, settings=SolverSettings(forcing=1e-9))
    assert solution.outcome is Outcome.CERTIFIED
    assert len(solution.steps) == 1
    assert solution.steps[0].rho == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("erased", [1, 60])
def test_unlearning_agrees_with_retraining_within_the_certified_distances(family: str, erased: int) -> None:
    whole = make_problem(family, n=400, width=8, lam=1e-3)
    ((x, y),) = whole.rows.chunks(400)
    start = train(whole, target=1e-3).w
    order = torch.argsort(y.double())  # a biased deletion: the smallest targets go
    kept = order[erased:]
    rows = ArrayRows(x[kept], y[kept])
    remaining: LinearObjective
    if family == "softmax":
        remaining = Softmax(rows, 4, 1e-3)
    else:
        remaining = (Logistic if family == "logistic" else Ridge)(rows, 1e-3)
    unlearned = minimise(remaining, start, target=1e-3)
    retrained = train(remaining, target=1e-3)
    gap = float(torch.linalg.vector_norm(unlearned.w - retrained.w))
    assert unlearned.outcome is retrained.outcome is Outcome.CERTIFIED
    assert gap <= unlearned.distance + retrained.distance


def sampled_problem(seed: int = 0, biased: bool = False) -> Softmax:
    """Return a problem large enough that the default settings sample rows."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((24_000, 12)).astype(np.float32)
    labels = np.argmax(x[:, :4] * 2 + rng.gumbel(size=(24_000, 4)), axis=1)
    if biased:
        keep = (labels != 0) | (rng.random(24_000) < 0.02)
        x, labels = x[keep], labels[keep]
    return Softmax(ArrayRows(x, labels), 4, 1e-4)


@pytest.mark.parametrize("biased", [False, True])
def test_sampled_products_certify_the_same_point_for_a_fraction_of_the_passes(biased: bool) -> None:
    objective = sampled_problem(biased=biased)
    sampled = train(objective, target=1e-3)
    exact = train(objective, target=1e-3, settings=EXACT)
    assert sampled.outcome is exact.outcome is Outcome.CERTIFIED
    assert sampled.passes < exact.passes / 2
    assert float(torch.linalg.vector_norm(sampled.w - exact.w)) <= sampled.distance + exact.distance


def test_the_path_is_reproducible_and_the_seed_changes_only_the_path() -> None:
    objective = sampled_problem()
    first, again = train(objective, target=1e-2), train(objective, target=1e-2)
    other = train(objective, target=1e-2, settings=SolverSettings(seed=7))
    assert torch.equal(first.w, again.w)
    assert not torch.equal(first.w, other.w)
    assert float(torch.linalg.vector_norm(first.w - other.w)) <= first.distance + other.distance


def test_passes_count_every_row_touched() -> None:
    objective = make_problem("softmax", n=200)
    solution = train(objective, target=1e-4, settings=SolverSettings(preconditioner_rank=0))
    products = sum(step.products for step in solution.steps)
    linearisations = len(solution.steps)
    assert solution.passes == 1 + len(solution.steps) + products + linearisations


def test_a_warm_start_at_the_answer_costs_one_pass() -> None:
    objective = make_problem("softmax")
    answer = train(objective, target=1e-6).w
    solution = minimise(objective, answer, target=1e-3)
    assert solution.passes == 1
    assert solution.steps == ()
    assert torch.equal(solution.w, answer)


def test_the_cauchy_point_alone_converges_too() -> None:
    objective = make_problem("logistic", lam=0.1)
    solution = train(objective, target=1e-3, subproblem=cauchy, settings=SolverSettings(max_steps=500))
    assert solution.outcome is Outcome.CERTIFIED


def test_progress_reports_every_step_in_order() -> None:
    seen: list[Step] = []
    solution = train(make_problem("softmax"), target=1e-6, progress=seen.append)
    assert tuple(seen) == solution.steps
    assert [step.index for step in seen] == list(range(len(seen)))
    assert seen[-1].distance == solution.distance
    assert all(a.passes < b.passes and a.seconds <= b.seconds for a, b in itertools.pairwise(seen))


def test_a_small_region_grows_until_it_no_longer_binds() -> None:
    solution = train(make_problem("ridge"), target=1e-6, settings=SolverSettings(initial_radius=1e-3))
    assert solution.outcome is Outcome.CERTIFIED
    assert solution.steps[1].radius == 2 * solution.steps[0].radius


def test_step_limit() -> None:
    solution = train(make_problem("softmax"), target=1e-9, settings=SolverSettings(max_steps=1))
    assert solution.outcome is Outcome.STEPS_EXHAUSTED
    assert len(solution.steps) == 1


def test_time_limit() -> None:
    solution = train(make_problem("softmax"), target=1e-9, settings=SolverSettings(max_seconds=0.0))
    assert solution.outcome is Outcome.TIME_EXHAUSTED


def test_cancellation_is_noticed_before_the_next_step_and_within_one() -> None:
    objective = make_problem("softmax")
    assert train(objective, target=1e-9, cancelled=lambda: True).outcome is Outcome.CANCELLED
    calls = iter([False, False] + [True] * 100)
    solution = train(objective, target=1e-9, cancelled=lambda: next(calls))
    assert solution.outcome is Outcome.CANCELLED
    assert solution.steps == ()


def test_a_target_below_rounding_ends_as_stalled_with_an_honest_distance() -> None:
    objective = make_problem("softmax")
    solution = train(objective, target=1e-18)
    assert solution.outcome is Outcome.STALLED
    assert solution.distance > 1e-18


def test_an_objective_beyond_double_precision_is_non_finite() -> None:
    assert train(make_problem("ridge", scale=1e200), target=1.0).outcome is Outcome.NON_FINITE


def test_a_pass_in_single_precision_can_certify_nothing() -> None:
    objective = sampled_problem()
    answer = train(objective, target=1e-3)
    rough = objective.evaluate(answer.w, single=True)
    assert rough.rounding == math.inf
    assert math.isfinite(answer.rounding)


def test_single_precision_passes_lead_to_the_same_certified_point() -> None:
    objective = sampled_problem()
    mixed = train(objective, target=1e-3)
    double = train(objective, target=1e-3, settings=SolverSettings(single_precision=False))
    assert mixed.outcome is double.outcome is Outcome.CERTIFIED
    assert float(torch.linalg.vector_norm(mixed.w - double.w)) <= mixed.distance + double.distance


def test_targets_beyond_single_precision_are_reached_by_double_passes() -> None:
    solution = train(sampled_problem(), target=1e-6)
    assert solution.outcome is Outcome.CERTIFIED


def test_a_run_that_ends_early_still_reports_a_certified_distance() -> None:
    solution = train(sampled_problem(), target=1e-6, settings=SolverSettings(max_steps=1))
    assert solution.outcome is Outcome.STEPS_EXHAUSTED
    assert math.isfinite(solution.rounding)
    assert math.isfinite(solution.distance)


def test_the_solution_is_never_memory_of_the_input_or_of_the_objective() -> None:
    """Overwriting a solution after its release must not overwrite the anchor or the start."""
    objective = make_problem("ridge")
    anchor = torch.ones(objective.dimension, dtype=torch.float64)
    anchored = Ridge(objective.rows, 1e-2, anchor)
    start = random_point(anchored)
    for solution in (train(anchored, target=1e9), minimise(anchored, start, target=1e9)):
        assert solution.steps == ()
        solution.w.zero_()
    assert torch.equal(anchored.anchor, torch.ones_like(anchor))
    assert torch.equal(start, random_point(anchored))
    anchored.anchor.zero_()
    assert torch.equal(anchor, torch.ones_like(anchor))


class Watched(Ridge):
    """Remembers the point of the last float64 pass."""

    evaluated: torch.Tensor

    def evaluate(self, w: torch.Tensor, *, single: bool = False) -> Evaluation:
        self.evaluated = w
        return super().evaluate(w, single=single)


def test_the_point_returned_is_the_tensor_that_was_evaluated() -> None:
    objective = Watched(make_problem("ridge").rows, 1e-2)
    solution = train(objective, target=1e-6)
    assert solution.outcome is Outcome.CERTIFIED
    assert solution.steps
    assert solution.w is objective.evaluated


def test_no_pass_in_single_precision_is_taken_where_its_result_would_drown_in_noise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pass whose result cannot be used is followed by another one at the same point."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6000, 20, generator=generator)
    y = (x @ torch.randn(20, 3, generator=generator)).argmax(1)
    objective = Softmax(ArrayRows(x, y), 3, 1e-3)
    passes: list[tuple[bool, torch.Tensor]] = []
    evaluate = objective.evaluate

    def recorded(w: torch.Tensor, *, single: bool = False) -> Evaluation:
        passes.append((single, w))
        return evaluate(w, single=single)

    monkeypatch.setattr(objective, "evaluate", recorded)
    solution = train(objective, target=1e-7)  # far below what float32 resolves
    assert solution.outcome is Outcome.CERTIFIED
    repeated = sum(one[1] is other[1] for one, other in itertools.pairwise(passes))
    assert repeated <= 1, "the first step into the noise may come as a surprise"
    assert sum(not single for single, _ in passes) > 1

"""Invalid or unusual input gives a clear error or the right answer."""

import math

import numpy as np
import pytest
import torch

from tests.unit.engine.engine_problems import FAMILIES, make_problem
from worker.engine.families import Logistic, Ridge, Softmax
from worker.engine.rows import ArrayRows
from worker.engine.trust_region import Outcome, minimise, train
from worker.engine.validation import EngineInputError


def rows(n: int = 30, width: int = 4, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((n, width)), rng.integers(0, classes, n)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_feature_that_is_not_a_number_is_refused_by_row(bad: float) -> None:
    x, y = rows()
    x[17, 2] = bad
    with pytest.raises(EngineInputError, match="row 17"):
        train(Softmax(ArrayRows(x, y), 3, 0.1), target=1.0)


@pytest.mark.parametrize("bad", [-1, 3, 1_000_000])
def test_a_label_out_of_range_is_refused_by_row(bad: int) -> None:
    x, y = rows()
    y[5] = bad
    with pytest.raises(EngineInputError, match=f"label {bad} of row 5"):
        train(Softmax(ArrayRows(x, y), 3, 0.1), target=1.0)


@pytest.mark.parametrize("bad", [0.5, math.nan])
def test_a_fractional_label_is_refused(bad: float) -> None:
    x, y = rows(classes=2)
    y = y.astype(np.float64)
    y[3] = bad
    with pytest.raises(EngineInputError, match="row 3"):
        train(Logistic(ArrayRows(x, y), 0.1), target=1.0)


def test_a_target_that_is_not_finite_is_refused() -> None:
    x, _ = rows()
    y = np.zeros(30)
    y[8] = math.inf
    with pytest.raises(EngineInputError, match="target of row 8"):
        train(Ridge(ArrayRows(x, y), 0.1), target=1.0)


@pytest.mark.parametrize("lam", [0.0, -1.0, math.nan, math.inf])
def test_lambda_must_be_positive(lam: float) -> None:
    x, y = rows()
    with pytest.raises(EngineInputError, match="lambda"):
        Softmax(ArrayRows(x, y), 3, lam)


def test_an_empty_remainder_is_refused() -> None:
    with pytest.raises(EngineInputError, match="no rows"):
        Softmax(ArrayRows(np.empty((0, 4)), np.empty(0, dtype=np.int64)), 3, 0.1)


def test_rows_without_features_are_refused() -> None:
    with pytest.raises(EngineInputError, match="no features"):
        Softmax(ArrayRows(np.empty((4, 0)), np.zeros(4, dtype=np.int64)), 3, 0.1)


def test_one_class_is_no_softmax() -> None:
    with pytest.raises(EngineInputError, match="two classes"):
        Softmax(ArrayRows(*rows()), 1, 0.1)


@pytest.mark.parametrize("target", [0.0, -1.0, math.nan, math.inf])
def test_the_target_must_be_positive_and_finite(target: float) -> None:
    with pytest.raises(EngineInputError, match="target distance"):
        train(make_problem("softmax"), target=target)


def test_a_start_or_anchor_of_the_wrong_shape_or_content_is_refused() -> None:
    objective = make_problem("softmax")
    with pytest.raises(EngineInputError, match="start"):
        minimise(objective, torch.zeros(3, dtype=torch.float64), target=1.0)
    with pytest.raises(EngineInputError, match="start holds"):
        minimise(objective, objective.anchor * math.nan, target=1.0)
    with pytest.raises(EngineInputError, match="anchor"):
        Softmax(objective.rows, 4, 0.1, torch.zeros(3))


def test_arrays_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(n, width\)"):
        ArrayRows(np.zeros((3, 2)), np.zeros(4))


def test_parameters_under_other_names_are_refused() -> None:
    with pytest.raises(EngineInputError, match="expected"):
        make_problem("softmax").flatten({"weight": torch.zeros(4, 6)})


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_to_forget_leaves_the_model_where_it_is(family: str) -> None:
    objective = make_problem(family)
    start = train(objective, target=1e-3).w
    assert torch.equal(minimise(objective, start, target=1e-3).w, start)


def test_a_single_remaining_class_still_has_a_certified_minimiser() -> None:
    x, _ = rows()
    solution = train(Softmax(ArrayRows(x, np.ones(30, dtype=np.int64)), 3, 1e-2), target=1e-4)
    assert solution.outcome is Outcome.CERTIFIED


def test_a_single_row_works() -> None:
    x, y = rows(n=1)
    assert train(Softmax(ArrayRows(x, y), 3, 1e-2), target=1e-4).outcome is Outcome.CERTIFIED


def test_duplicated_rows_have_the_same_minimiser_as_single_ones() -> None:
    x, y = rows()
    once = train(Softmax(ArrayRows(x, y), 3, 1e-2), target=1e-6)
    twice = train(Softmax(ArrayRows(np.vstack([x, x]), np.concatenate([y, y])), 3, 1e-2), target=1e-6)
    assert float(torch.linalg.vector_norm(once.w - twice.w)) <= once.distance + twice.distance


@pytest.mark.parametrize("family", FAMILIES)
def test_more_parameters_than_rows(family: str) -> None:
    assert train(make_problem(family, n=6, width=30), target=1e-4).outcome is Outcome.CERTIFIED


@pytest.mark.parametrize("family", FAMILIES)
def test_wildly_scaled_features_are_certified(family: str) -> None:
    objective = make_problem(family, n=60, width=5, lam=1e-3)
    ((x, y),) = objective.rows.chunks(60)
    scaled = ArrayRows(x * torch.tensor([1e-6, 1e-3, 1.0, 1e2, 1e4]), y)
    again = (
        Softmax(scaled, 4, 1e-3)
        if family == "softmax"
        else (Logistic if family == "logistic" else Ridge)(scaled, 1e-3)
    )
    solution = train(again, target=1e-2)
    assert solution.outcome is Outcome.CERTIFIED


def test_float32_features_mean_their_exact_values() -> None:
    x, y = rows()
    single = x.astype(np.float32)
    w = torch.ones(15, dtype=torch.float64)
    from_single = Softmax(ArrayRows(single, y), 3, 0.1).gradient(w)
    from_double = Softmax(ArrayRows(single.astype(np.float64), y), 3, 0.1).gradient(w)
    assert torch.equal(from_single, from_double)


def test_features_beyond_single_precision_fall_back_to_exact_products() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((12_000, 5)) * 1e25
    solution = train(Ridge(ArrayRows(x, rng.standard_normal(12_000)), 1e45), target=1e-25)
    assert solution.outcome is Outcome.CERTIFIED


def test_features_of_another_type_are_refused() -> None:
    x, y = rows()
    with pytest.raises(EngineInputError, match="float32 or float64"):
        train(Softmax(ArrayRows(x.astype(np.float16), y), 3, 0.1), target=1.0)

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from worker.evaluation import tails
from worker.evaluation.tails import Slack

shifts = st.floats(0, 30)
dimensions = st.integers(1, 10**7)
levels = st.floats(1e-8, 0.4)


def free(dimension: int, allowance: float = 0.0) -> Slack:
    return Slack(dimension, allowance, 0.0, 0.0)


@pytest.mark.parametrize("dimension", [2, 50, 10**4, 10**6])
@pytest.mark.parametrize("allowance", [0.3, 3.0, 300.0])
@pytest.mark.parametrize("deviations", [-3, 0, 4, 8])
def test_the_noncentral_tail_agrees_with_integration(dimension, allowance, deviations) -> None:
    spread = math.sqrt(2 * (dimension + 2 * allowance**2))
    square = max(0.1, dimension + allowance**2 + deviations * spread)
    # along s, z is N(allowance, 1); across it, central χ² with one dimension less
    x, step = np.linspace(-14, 14, 100_001, retstep=True)
    rest = np.maximum(square - (x + allowance) ** 2, 0.0)
    integral = float(np.sum(stats.chi2.sf(rest, dimension - 1) * stats.norm.pdf(x)) * step)
    assert tails.norm_above(math.sqrt(square), free(dimension, allowance)) == pytest.approx(
        integral, rel=1e-3
    )


@pytest.mark.parametrize("dimension", [1, 30, 10**6])
def test_the_central_tails_agree_with_high_precision(dimension) -> None:
    with mpmath.workdps(40):
        for ratio in (0.995, 1.005):
            square = dimension * ratio
            below = mpmath.gammainc(dimension / 2, 0, square / 2, regularized=True)
            assert tails.norm_below(math.sqrt(square), free(dimension)) == pytest.approx(
                float(below), rel=1e-8
            )
            assert tails.norm_above(math.sqrt(square), free(dimension)) == pytest.approx(
                float(1 - below), rel=1e-8
            )


@settings(max_examples=50, deadline=None)
@given(dimensions, shifts, shifts, st.floats(-6, 6))
def test_a_longer_allowance_never_makes_a_p_value_smaller(dimension, one, other, deviations) -> None:
    norm = math.sqrt(max(0.0, dimension + deviations * math.sqrt(2 * dimension)))
    small, large = sorted((one, other))
    assert tails.norm_above(norm, free(dimension, small)) <= tails.norm_above(
        norm, free(dimension, large)
    ) * (1 + 1e-6)
    assert tails.along(deviations, free(dimension, small)) <= tails.along(
        deviations, free(dimension, large)
    ) * (1 + 1e-9)
    assert tails.ks_above(0.1, free(dimension, small)) <= tails.ks_above(0.1, free(dimension, large))


def test_beyond_the_exact_law_the_triangle_inequality_takes_over_on_the_safe_side() -> None:
    for norm in (900.0, 1_010.0, 1_050.0):
        exact = stats.ncx2.sf(norm**2, 500, 1000.0**2)
        assert tails.norm_above(norm, free(500, math.nextafter(1000.0, math.inf))) >= exact * (1 - 1e-9)


@settings(max_examples=50, deadline=None)
@given(dimensions, st.floats(0, 5), st.floats(0, 1), levels)
def test_critical_values_are_where_the_p_value_meets_the_level(dimension, allowance, rounding, level) -> None:
    slack = Slack(dimension, allowance, rounding, rounding / math.sqrt(dimension))
    above = tails.norm_critical_above(level, slack)
    assert tails.norm_above(above, slack) == pytest.approx(level, rel=1e-4)
    below = tails.norm_critical_below(level, slack)
    if below > 0:
        assert tails.norm_below(below, slack) == pytest.approx(level, rel=1e-4)
    assert tails.along(tails.along_critical(level, slack), slack) == pytest.approx(level, rel=1e-6)
    assert tails.ks_above(tails.ks_critical(level, slack), slack) == pytest.approx(level, rel=1e-4)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-20, 20), min_size=1, max_size=60).map(np.array))
def test_no_shift_moves_the_mean_distribution_function_by_more_than_the_bias(shift) -> None:
    slack = free(len(shift), float(np.linalg.norm(shift)))
    t = np.linspace(-25, 25, 501)[:, None]
    moved = np.abs(stats.norm.cdf(t - shift).mean(1) - stats.norm.cdf(t[:, 0])).max()
    assert moved <= tails.ks_bias(slack) * (1 + 1e-9) + 1e-15


@pytest.mark.parametrize("allowance", [0.0, 2.0])
@pytest.mark.parametrize("spread", ["one coordinate", "all coordinates"])
def test_no_allowed_shift_raises_a_tests_false_alarms_above_its_level(allowance, spread) -> None:
    rng = np.random.default_rng(7)
    dimension, draws, level = 40, 4000, 0.1
    shift = np.zeros(dimension)
    if spread == "one coordinate":
        shift[0] = allowance
    else:
        shift += allowance / math.sqrt(dimension)
    z = rng.standard_normal((draws, dimension)) + shift
    slack = free(dimension, allowance)
    norms = np.linalg.norm(z, axis=1)
    grid = np.sort(stats.norm.cdf(z), axis=1)
    steps = np.arange(dimension + 1) / dimension
    distances = np.maximum((steps[1:] - grid).max(1), (grid - steps[:-1]).max(1))
    components = z @ (shift / allowance if allowance else np.eye(dimension)[0])
    ceiling = level + 4 * math.sqrt(level * (1 - level) / draws)
    rates = {
        "short": np.mean(norms <= tails.norm_critical_below(level, slack)),
        "long": np.mean(norms >= tails.norm_critical_above(level, slack)),
        "along": np.mean(np.abs(components) >= tails.along_critical(level, slack)),
        "shape": np.mean(distances >= tails.ks_critical(level, slack)),
    }
    assert max(rates.values()) <= ceiling, rates
    # the worst shift uses the level up, so the allowance is not wider than it must be
    assert rates["long"] >= 2 * level - ceiling
    assert rates["along"] >= 2 * level - ceiling

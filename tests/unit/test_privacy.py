"""Privacy arithmetic, checked against 50-digit arithmetic, an independent library and its own algebra."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lethe.certificate.privacy import (
    classical_sigma,
    compose,
    delta_of,
    epsilon_for,
    loss_exceeds,
    shift_for,
    sigma_for,
)


def exact_delta(epsilon: float, shift: float) -> mpmath.mpf:
    """Evaluate the formula of Balle & Wang. With 110 digits, at least 50 remain after cancellation."""
    with mpmath.workdps(110):
        e, s = mpmath.mpf(epsilon), mpmath.mpf(shift)
        return mpmath.ncdf(s / 2 - e / s) - mpmath.exp(e) * mpmath.ncdf(-s / 2 - e / s)


log_shifts = st.floats(-12, 3).map(lambda x: 10**x)
epsilons = st.floats(-6, 2).map(lambda x: 10**x)
deltas = st.floats(-300, -0.01).map(lambda x: 10**x)


@given(shift=log_shifts, a=st.floats(-8, 37))
@settings(max_examples=400, deadline=None)
def test_delta_has_full_relative_precision_over_the_whole_range(shift: float, a: float) -> None:
    epsilon = max(0.0, shift * (a + shift / 2))
    exact = exact_delta(epsilon, shift)
    assume(exact >= mpmath.mpf("1e-300"))
    assert abs(delta_of(epsilon=epsilon, shift=shift) / exact - 1) < 1e-12


@pytest.mark.parametrize("shift", [1e-12, 1e-8, 1e-4, 0.24, 0.26, 1.0, 4.0, 1e3])
def test_delta_at_epsilon_zero_is_the_total_variation(shift: float) -> None:
    assert delta_of(epsilon=0.0, shift=shift) == pytest.approx(math.erf(shift / math.sqrt(8)), rel=1e-13)


@given(epsilon=epsilons, delta=deltas)
@settings(max_examples=150, deadline=None)
def test_shift_is_allowed_in_exact_arithmetic_and_is_nearly_the_largest(epsilon: float, delta: float) -> None:
    shift = shift_for(epsilon=epsilon, delta=delta)
    assert exact_delta(epsilon, shift) <= delta
    assert exact_delta(epsilon, shift * (1 + 1e-9)) > delta


@given(epsilon=epsilons, delta=deltas, distance=st.floats(-9, 9).map(lambda x: 10**x))
@settings(max_examples=100, deadline=None)
def test_sigma_is_sound_in_exact_arithmetic_and_as_a_verifier_recomputes_it(
    epsilon: float, delta: float, distance: float
) -> None:
    sigma = sigma_for(epsilon=epsilon, delta=delta, distance=distance)
    with mpmath.workdps(110):
        assert exact_delta(epsilon, mpmath.mpf(distance) / mpmath.mpf(sigma)) <= delta
    assert delta_of(epsilon=epsilon, shift=distance / sigma) <= delta


@given(delta=deltas, shift=log_shifts)
@settings(max_examples=150, deadline=None)
def test_epsilon_is_sound_in_exact_arithmetic_and_tight(delta: float, shift: float) -> None:
    epsilon = epsilon_for(delta=delta, shift=shift)
    assert exact_delta(epsilon, shift) <= delta
    assert epsilon == 0 or exact_delta(epsilon * (1 - 1e-9), shift) > delta


@given(epsilon=epsilons, delta=deltas)
@settings(max_examples=300, deadline=None)
def test_round_trip_between_epsilon_and_shift(epsilon: float, delta: float) -> None:
    shift = shift_for(epsilon=epsilon, delta=delta)
    back = epsilon_for(delta=delta, shift=shift)
    assume(back > 0)  # if δ is large compared with ε, δ alone determines the shift
    assert back <= epsilon
    assert exact_delta(back, shift) == pytest.approx(delta, rel=1e-10)


@given(epsilon=epsilons, low=log_shifts, factor=st.floats(1.001, 10))
@settings(deadline=None)
def test_delta_grows_with_shift_and_falls_with_epsilon(epsilon: float, low: float, factor: float) -> None:
    assert delta_of(epsilon=epsilon, shift=low) <= delta_of(epsilon=epsilon, shift=low * factor)
    assert delta_of(epsilon=epsilon, shift=low) >= delta_of(epsilon=epsilon * factor, shift=low)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-5), (1.0, 1e-6), (3.0, 1e-9), (8.0, 1e-3)])
def test_agrees_with_an_independent_accountant(epsilon: float, delta: float) -> None:
    common = pytest.importorskip("dp_accounting.pld.common")
    mechanisms = pytest.importorskip("dp_accounting.pld.privacy_loss_mechanism")
    sigma = sigma_for(epsilon=epsilon, delta=delta, distance=1.0)
    theirs = mechanisms.GaussianPrivacyLoss.from_privacy_guarantee(
        common.DifferentialPrivacyParameters(epsilon, delta), sensitivity=1.0
    )
    assert sigma == pytest.approx(theirs.standard_deviation, rel=1e-5)
    assert delta_of(epsilon=epsilon, shift=1 / sigma) == pytest.approx(
        mechanisms.GaussianPrivacyLoss(sigma).get_delta_for_epsilon(epsilon), rel=1e-8
    )


def test_the_analytic_calibration_never_needs_more_noise_than_the_classical_one() -> None:
    for epsilon in (0.01, 0.1, 0.5, 0.99):
        for delta in (1e-12, 1e-6, 1e-3):
            analytic = sigma_for(epsilon=epsilon, delta=delta, distance=2.0)
            assert analytic < classical_sigma(epsilon=epsilon, delta=delta, distance=2.0)


@pytest.mark.parametrize("epsilon", [1.0, 1.5, 8.0])
def test_the_classical_calibration_is_refused_where_its_proof_ends(epsilon: float) -> None:
    with pytest.raises(ValueError, match="epsilon must be"):
        classical_sigma(epsilon=epsilon, delta=1e-5, distance=1.0)


@given(st.lists(st.floats(-200, 3).map(lambda x: 10**x), max_size=30))
def test_composition_is_the_root_of_the_sum_of_squares_rounded_up(shifts: list[float]) -> None:
    with mpmath.workdps(800):
        exact = mpmath.sqrt(sum((mpmath.mpf(s) ** 2 for s in shifts), mpmath.mpf(0)))
        assert exact <= compose(shifts) <= exact * (1 + mpmath.mpf(2) ** -51)


def test_a_release_without_shift_costs_nothing() -> None:
    assert compose([0.3, 0.0]) == compose([0.3]) == 0.3
    assert compose([0.0, 0.0]) == 0.0
    assert epsilon_for(delta=1e-9, shift=0.0) == 0.0


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_parameters_out_of_range_are_refused(bad: float) -> None:
    for call in (
        lambda: delta_of(epsilon=bad, shift=1.0),
        lambda: delta_of(epsilon=1.0, shift=bad),
        lambda: sigma_for(epsilon=bad, delta=1e-5, distance=1.0),
        lambda: sigma_for(epsilon=1.0, delta=bad, distance=1.0),
        lambda: sigma_for(epsilon=1.0, delta=1e-5, distance=bad),
        lambda: epsilon_for(delta=bad, shift=1.0),
        lambda: epsilon_for(delta=1e-5, shift=bad),
        lambda: compose([1.0, bad]),
    ):
        with pytest.raises(ValueError, match="must be a finite number"):
            call()


@pytest.mark.parametrize("delta", [0.0, 1e-301, 1.0])
def test_delta_outside_its_open_interval_is_refused(delta: float) -> None:
    with pytest.raises(ValueError, match="delta"):
        shift_for(epsilon=1.0, delta=delta)


def test_zero_distance_and_zero_epsilon_are_refused_where_no_finite_answer_exists() -> None:
    with pytest.raises(ValueError, match="distance"):
        sigma_for(epsilon=1.0, delta=1e-5, distance=0.0)
    with pytest.raises(ValueError, match="epsilon"):
        shift_for(epsilon=0.0, delta=1e-5)


@given(shift=log_shifts, a=st.floats(-8, 37))
@settings(max_examples=300, deadline=None)
def test_the_probability_of_a_larger_loss_has_full_relative_precision(shift: float, a: float) -> None:
    epsilon = max(0.0, shift * (a + shift / 2))
    with mpmath.workdps(60):
        e, s = mpmath.mpf(epsilon), mpmath.mpf(shift)
        exact = mpmath.ncdf(s / 2 - e / s)
    assume(exact >= mpmath.mpf("1e-300"))
    probability = loss_exceeds(epsilon=epsilon, shift=shift)
    assert abs(probability / exact - 1) < 1e-12
    assert probability >= delta_of(epsilon=epsilon, shift=shift)


@pytest.mark.parametrize(("epsilon", "shift"), [(0.0, 1.0), (0.5, 0.4), (1.0, 1.0), (3.0, 1.5)])
def test_the_probability_of_a_larger_loss_and_delta_agree_with_sampled_losses(
    epsilon: float, shift: float
) -> None:
    """Compare a release from N(s, 1) with one from N(0, 1). The privacy loss at x is s·x - s²/2."""
    x = shift + np.random.default_rng(4).standard_normal(2_000_000)
    loss = shift * x - shift**2 / 2
    spread = 4 / math.sqrt(len(x))
    assert np.mean(loss > epsilon) == pytest.approx(loss_exceeds(epsilon=epsilon, shift=shift), abs=spread)
    excess = np.mean(np.maximum(0.0, 1 - np.exp(epsilon - loss)))
    assert excess == pytest.approx(delta_of(epsilon=epsilon, shift=shift), abs=spread)


def test_delta_is_not_the_probability_that_the_loss_exceeds_epsilon() -> None:
    shift = shift_for(epsilon=1.0, delta=1e-5)
    assert loss_exceeds(epsilon=1.0, shift=shift) == pytest.approx(1.612e-4, rel=1e-3)
    assert loss_exceeds(epsilon=0.0, shift=1e-9) == pytest.approx(0.5)
    assert loss_exceeds(epsilon=1e300, shift=1e-300) == 0.0

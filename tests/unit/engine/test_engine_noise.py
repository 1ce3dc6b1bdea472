"""The noise: the transform is exact to its tails, and the stream is Gaussian."""

import inspect
import math

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats

from certificate.privacy import SMALLEST_DELTA
from worker.engine import noise


@pytest.fixture(scope="module")
def stream() -> np.ndarray:
    return noise.draw(4_000_000).numpy()


def words(radius: int, angle: int) -> noise.ByteSource:
    return lambda count: np.array([radius >> 64, radius % 2**64, angle], dtype="<u8").tobytes()


@pytest.mark.parametrize("radius", [0, 1, 2**40, 2**64 - 1, 2**64, 2**75, 2**104 + 1, 2**127, 2**128 - 1])
@pytest.mark.parametrize("angle", [0, 2**20, 2**62, 2**63 + 2**61])
def test_each_pair_is_the_box_muller_transform_of_its_words(radius: int, angle: int) -> None:
    values = noise.gaussian(2, source=words(radius, angle))
    with mpmath.workdps(40):
        r = mpmath.sqrt(-2 * mpmath.log((mpmath.mpf(radius) + 0.5) / 2**128))
        phi = 2 * mpmath.pi * (angle >> 11) / 2**53
        assert float(values[0]) == pytest.approx(float(r * mpmath.cos(phi)), rel=1e-12, abs=2e-8)
        assert float(values[1]) == pytest.approx(float(r * mpmath.sin(phi)), rel=1e-12, abs=2e-8)


def test_the_tail_is_cut_where_no_certified_delta_can_notice() -> None:
    reach = float(noise.gaussian(1, source=words(0, 0))[0])
    cut = math.exp(-(reach**2) / 2)  # probability, for one pair
    assert reach > 13.3
    assert 2**40 * cut * (1 + math.exp(20)) < 1e-3 * SMALLEST_DELTA


def test_moments(stream: np.ndarray) -> None:
    n = len(stream)
    for power, expected, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((stream**power).mean() - expected) < 5 * math.sqrt(variance / n)


def test_the_distribution_passes_kolmogorov_smirnov(stream: np.ndarray) -> None:
    assert stats.kstest(stream[:1_000_000], "norm").pvalue > 1e-6


def test_tails_hold_as_many_values_as_they_should(stream: np.ndarray) -> None:
    for sigma in (2, 3, 4, 4.5):
        for tail in (stream > sigma, stream < -sigma):
            expected = len(stream) * stats.norm.sf(sigma)
            assert abs(tail.sum() - expected) < 6 * math.sqrt(expected) + 3


def test_six_sigma_is_reached_with_the_right_probability() -> None:
    # Condition on the radius word's top 22 bits being zero: |pair| > √(2·22·ln 2) = 5.52, and beyond 6
    # the radius has probability e^{-18}·2²² given that.
    rng = np.random.default_rng(5)
    pairs = 2**16
    small = rng.integers(0, 2**42, pairs, dtype=np.uint64)
    low, angle = rng.integers(0, 2**64, (2, pairs), dtype=np.uint64)
    values = noise.gaussian(2 * pairs, source=lambda count: np.stack([small, low, angle]).tobytes()).numpy()
    radius = np.hypot(values[:pairs], values[pairs:])
    expected = pairs * math.exp(-18) * 2**22
    assert radius.min() > 5.52
    assert abs((radius > 6).sum() - expected) < 6 * math.sqrt(expected)


def test_neighbours_and_halves_of_a_pair_are_uncorrelated(stream: np.ndarray) -> None:
    for lag in (1, 2, 65536):
        assert abs(np.corrcoef(stream[:-lag], stream[lag:])[0, 1]) < 5 / math.sqrt(len(stream))


def test_two_draws_share_nothing() -> None:
    assert not torch.equal(noise.draw(100), noise.draw(100))


def test_production_noise_takes_a_count_and_nothing_else() -> None:
    assert list(inspect.signature(noise.draw).parameters) == ["count"]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 131_073])
def test_any_count_is_served(count: int) -> None:
    values = noise.draw(count)
    assert values.shape == (count,)
    assert values.dtype == torch.float64
    assert bool(torch.isfinite(values).all())


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(ValueError, match="count"):
        noise.draw(-1)

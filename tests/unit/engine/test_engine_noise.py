"""The noise is Gaussian, exact in its tails, and rounded as in real arithmetic."""

import inspect
import math
import os

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats

from lethe.certificate.privacy import (
    COORDINATE_RESIDUAL,
    LARGEST_EPSILON,
    NOISE_RESIDUAL,
    SMALLEST_DELTA,
    grid_step,
)
from worker.engine import noise


@pytest.fixture(scope="module")
def stream() -> np.ndarray:
    """Four million values as in production, except that the key is fixed, so that no test fails by chance."""
    with pytest.MonkeyPatch.context() as fixed:
        fixed.setattr(os, "urandom", np.random.default_rng(3).bytes)
        return noise.draw(4_000_000).numpy()


def words(radius: int, angle: int) -> noise.ByteSource:
    parts = [radius >> 64, radius % 2**64, angle >> 64, angle % 2**64]
    return lambda count: np.array(parts, dtype="<u8").tobytes()


def exact_pair(radius: int, angle: int) -> tuple[mpmath.mpf, mpmath.mpf]:
    r = mpmath.sqrt(-2 * mpmath.log((mpmath.mpf(radius) + 0.5) / 2**128))
    phi = 2 * mpmath.pi * (mpmath.mpf(angle) + 0.5) / 2**128
    return r * mpmath.cos(phi), r * mpmath.sin(phi)


EDGES = (
    0,
    1,
    2**40,
    2**64 - 1,
    2**64,
    2**104 + 1,
    2**125 - 1,
    2**125,
    2**126,
    2**127 - 1,
    2**127,
    2**128 - 1,
)


@pytest.mark.parametrize("radius", [*EDGES, int(math.sqrt(0.5) * 2**128), 2**128 - 2**70])
def test_each_pair_is_the_box_muller_transform_of_its_bits_to_2_to_the_minus_47(radius: int) -> None:
    """Check the error bound behind `TOLERANCE` at the edges of every octant and of the logarithm."""
    with mpmath.workprec(300):
        for angle in (
            *EDGES,
            *(k * 2**125 + 17 for k in range(8)),
            *((k + 1) * 2**125 - 1 for k in range(8)),
        ):
            values = noise.gaussian(2, source=words(radius, angle))
            for value, exact in zip(values.tolist(), exact_pair(radius, angle), strict=True):
                assert abs(mpmath.mpf(value) / exact - 1) < 2.0**-47.8


def test_random_pairs_are_within_the_bound() -> None:
    rng = np.random.default_rng(3)
    drawn = rng.integers(0, 2**64, (4, 2000), dtype=np.uint64)
    values = noise.gaussian(4000, source=lambda count: drawn.astype("<u8").tobytes()).tolist()
    with mpmath.workprec(300):
        for k in range(2000):
            a, b, c, d = (int(word) for word in drawn[:, k])
            for value, exact in zip(
                (values[k], values[2000 + k]), exact_pair(a << 64 | b, c << 64 | d), strict=True
            ):
                assert abs(mpmath.mpf(value) / exact - 1) < 2.0**-48


def test_the_tolerance_covers_the_error_of_the_largest_noise() -> None:
    reach = math.sqrt(2 * 129 * math.log(2))
    assert 16 * reach * (2.0**-47.8 + 2.0**-53) + 2.0**-53 < noise.TOLERANCE


@pytest.mark.parametrize("sigma", [1e-6, 0.37, 1.0, 250.0])
def test_rounding_in_doubles_is_rounding_in_real_arithmetic(sigma: float) -> None:
    """With a tolerance of a whole step, interval arithmetic decides everything, with the same result."""
    w = torch.linspace(-3, 3, 201, dtype=torch.float64) ** 3
    recorded = np.random.default_rng(4).bytes(1 << 16)
    fast, slow = (
        noise.rounded(
            w, sigma=sigma, step=grid_step(sigma), source=lambda n: recorded[:n], tolerance=tolerance
        )
        for tolerance in (noise.TOLERANCE, 1.0)
    )
    assert torch.equal(fast, slow)


def near_a_boundary(seed: int) -> tuple[float, int, int, int]:
    """Return a centre next to a rounding boundary, with its bits and the exact result."""
    rng = np.random.default_rng(seed)
    radius, angle = (int.from_bytes(rng.bytes(16), "little") for _ in range(2))
    with mpmath.workprec(400):
        z, _ = exact_pair(radius, angle)
        centre = float((mpmath.mpf("0.5") - 8 * z) / 8)
        exact = 8 * mpmath.mpf(centre) + 8 * z
        assert abs(exact - mpmath.mpf("0.5")) < noise.TOLERANCE
        return centre, radius, angle, int(mpmath.floor(exact + 0.5))


def test_a_value_next_to_a_boundary_is_decided_by_more_digits() -> None:
    """Some of these are wrong in doubles alone. With interval arithmetic none is."""
    wrong = 0
    for seed in range(150):
        centre, radius, angle, expected = near_a_boundary(seed)
        w = torch.tensor([centre, 0.0], dtype=torch.float64)
        source = words(radius, angle)
        assert int(noise.rounded(w, sigma=1.0, step=0.125, source=source)[0]) == expected
        imprecise = noise.rounded(w, sigma=1.0, step=0.125, source=source, tolerance=0.0)
        wrong += int(imprecise[0]) != expected
    assert wrong > 0


def test_large_weights_and_several_blocks_are_rounded_as_in_real_arithmetic() -> None:
    """Check coordinates from both halves of each block, with weights up to 2⁴⁹ steps."""
    rng = np.random.default_rng(8)
    count, sigma, step = 2 * 2**15 + 5, 3.0, 0.25
    w = rng.normal(size=count) * 2.0 ** rng.uniform(-10, 45, count)
    streams = [rng.bytes(32 * 2**15), rng.bytes(32 * 3)]
    queue = iter(streams)
    steps = noise.rounded(
        torch.from_numpy(w), sigma=sigma, step=step, source=lambda n: next(queue)[:n]
    ).tolist()
    places = [*range(0, count, 997), *range(count - 5, count)]
    with mpmath.workprec(400):
        for place in places:
            block, inside = divmod(place, 2**16)
            pairs = 2**15 if block == 0 else 3
            drawn = np.frombuffer(streams[block], "<u8").reshape(4, pairs)[:, inside % pairs]
            a, b, c, d = (int(word) for word in drawn)
            z = exact_pair(a << 64 | b, c << 64 | d)[inside // pairs]
            assert steps[place] == int(mpmath.floor(mpmath.mpf(w[place]) / step + sigma / step * z + 0.5))


def test_weights_are_exact_multiples_in_the_smallest_type_that_holds_them() -> None:
    small = noise.on_grid(torch.tensor([-3, 0, 2**24 - 1]), 2.0**-20)
    large = noise.on_grid(torch.tensor([-3, 0, 2**24]), 2.0**-20)
    assert (small.dtype, large.dtype) == (torch.float32, torch.float64)
    assert (small.double() * 2.0**20).tolist() == [-3, 0, 2**24 - 1]
    assert not torch.signbit(noise.on_grid(torch.tensor([0]), 0.5)).any()


@pytest.mark.parametrize(
    ("w", "sigma", "step"),
    [
        ([1.0], 1.0, 0.25),
        ([1.0], 1.0, 0.1),
        ([math.nan], 1.0, 0.125),
        ([2.0**50], 1.0, 0.125),
        ([1.0], -1, 1),
    ],
)
def test_what_the_grid_cannot_hold_is_refused(w: list[float], sigma: float, step: float) -> None:
    with pytest.raises(ValueError, match="grid"):
        noise.noised(torch.tensor(w, dtype=torch.float64), sigma=sigma, step=step)


def test_the_residual_is_nothing_beside_any_delta_that_is_certified() -> None:
    """430 boundaries with four rows of cells each, out of 2¹²⁸ (docs/maths.md, section 4)."""
    boundaries = math.floor(2 * math.sqrt(2 * 129 * math.log(2)) * 16 + 1)
    assert (4 * boundaries + 1) * 2.0**-128 < COORDINATE_RESIDUAL
    assert (1 + math.exp(LARGEST_EPSILON)) * NOISE_RESIDUAL < 0.05 * SMALLEST_DELTA


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
    pairs = 2**15
    small = rng.integers(0, 2**42, pairs, dtype=np.uint64)
    others = rng.integers(0, 2**64, (3, pairs), dtype=np.uint64)
    values = noise.gaussian(
        2 * pairs, source=lambda count: np.concatenate([small[None], others]).tobytes()
    ).numpy()
    radius = np.hypot(values[:pairs], values[pairs:])
    expected = pairs * math.exp(-18) * 2**22
    assert radius.min() > 5.52
    assert abs((radius > 6).sum() - expected) < 6 * math.sqrt(expected)


def test_neighbours_and_halves_of_a_pair_are_uncorrelated(stream: np.ndarray) -> None:
    for lag in (1, 2, 32768):
        assert abs(np.corrcoef(stream[:-lag], stream[lag:])[0, 1]) < 5 / math.sqrt(len(stream))


def test_two_draws_share_nothing() -> None:
    assert not torch.equal(noise.draw(100), noise.draw(100))


def test_production_noise_takes_weights_and_a_scale_and_no_bits() -> None:
    assert list(inspect.signature(noise.noised).parameters) == ["w", "sigma", "step"]
    assert list(inspect.signature(noise.draw).parameters) == ["count"]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 65_537])
def test_any_count_is_served(count: int) -> None:
    values = noise.draw(count)
    steps = noise.noised(torch.zeros(count, dtype=torch.float64), sigma=1.0, step=0.125)
    assert values.shape == steps.shape == (count,)
    assert (values.dtype, steps.dtype) == (torch.float64, torch.int64)
    assert bool(torch.isfinite(values).all())


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(ValueError, match="count"):
        noise.draw(-1)

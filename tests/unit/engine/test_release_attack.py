"""The attack on floating-point noise, run against both kinds of release.

Someone who can compute the un-noised centre for each guess of an erased person's label asks of every
published weight: could it have come from this centre at all? Floating-point noise says no about a hundred
times for a wrong guess. Noise on the public grid never does, and its likelihood ratio is a Gaussian's.
"""

import math
import os

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special
from sklearn.datasets import load_digits

from lethe.certificate.privacy import delta_of, grid_step
from worker.engine import noise

SIGMA = 3.73e-3
ROW = 7
STEP = grid_step(SIGMA)
EXTENT = math.sqrt(2 * 129 * math.log(2))  # the largest |z| that any bits give, a little more than 13


@pytest.fixture(autouse=True)
def fixed_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw the keys of the noise from a fixed stream, so that no test of it fails by chance."""
    monkeypatch.setattr(os, "urandom", np.random.default_rng(2).bytes)


def neighbours(x: np.ndarray, reach: int) -> list[np.ndarray]:
    """Return the doubles up to `reach` places from each x, including x."""
    doubles, low, high = [x], x, x
    for _ in range(reach):
        low, high = np.nextafter(low, -np.inf), np.nextafter(high, np.inf)
        doubles += [low, high]
    return doubles


def impossible_in_floating_point(published: np.ndarray, centre: np.ndarray) -> int:
    """Count the weights that equal fl(centre + fl(σ·z)) for no double z, as the attack does.

    Where the sum absorbs digits of the noise, several of its values give one weight: those are let through.
    """
    possible = np.spacing(np.abs(published)) > 2 * np.spacing(np.abs(published - centre))
    for x in neighbours(published - centre, 3):
        made = np.any([SIGMA * z == x for z in neighbours(x / SIGMA, 2)], axis=0)
        possible |= made & (centre + x == published)
    return int((~possible).sum())


def impossible_on_the_grid(steps: np.ndarray, centre: np.ndarray) -> int:
    """Count the weights whose cell no possible noise can reach from this centre."""
    low, high = ((steps - 0.5) * STEP - centre) / SIGMA, ((steps + 0.5) * STEP - centre) / SIGMA
    return int(((low > EXTENT - 0.01) | (high < -(EXTENT - 0.01))).sum())


def centres_by_label() -> list[np.ndarray]:
    """Return ten retrained centres of 7,850 weights: least squares on the digits, one label guessed.

    A closed form, so that each guess gives its centre to the last bit, as a deterministic solver would.
    """
    x, y = load_digits(return_X_y=True)
    x = np.cos(x / 16 @ np.random.default_rng(1).normal(size=(64, 784)))  # public random features
    x = np.hstack([x, np.ones((len(x), 1))])
    gram = x.T @ x / len(x) + 1e-3 * np.eye(x.shape[1])
    targets = np.eye(10)[np.where(np.arange(len(y)) == ROW, np.arange(10)[:, None], y)]  # (guess, row, class)
    return [np.linalg.solve(gram, x.T @ guess / len(x)).ravel() for guess in targets]


def test_floating_point_noise_gives_the_label_away_and_the_grid_does_not() -> None:
    centres = centres_by_label()
    true = int(load_digits().target[ROW])
    z = noise.draw(len(centres[true])).numpy()
    floating = centres[true] + SIGMA * z
    counts = [impossible_in_floating_point(floating, centre) for centre in centres]
    assert counts[true] == 0
    assert min(count for guess, count in enumerate(counts) if guess != true) > 50, counts

    centre = torch.from_numpy(centres[true])
    steps = noise.noised(centre, sigma=SIGMA, step=STEP).numpy()
    added = (steps * STEP - centres[true]) / SIGMA
    assert abs(np.mean(added**2) - 1) < 0.15, "noise was added"
    assert [impossible_on_the_grid(steps, guess) for guess in centres] == [0] * 10
    counts = [impossible_in_floating_point(steps * STEP, guess) for guess in centres]
    others = [count for guess, count in enumerate(counts) if guess != true]
    assert abs(counts[true] - np.mean(others)) < 6 * math.sqrt(max(others)), "the truth does not stand out"


def bits_for(z: float) -> tuple[int, int]:
    """Return radius and angle bits whose cosine is next to z."""
    radius = min(int(math.exp(-z * z / 2) * 2.0**128), 2**128 - 1)
    return radius, 0 if z >= 0 else 2**127


@settings(max_examples=300, deadline=None)
@given(
    published=st.integers(-(2**24), 2**24),
    offset=st.floats(-10, 10),
    other=st.floats(-10, 10),
)
def test_any_two_centres_within_ten_sigma_can_both_have_given_any_published_weight(
    published: int, offset: float, other: float
) -> None:
    """For each centre, construct bits under which it releases exactly this weight."""
    for distance in (offset, other):
        centre = published * STEP + distance * SIGMA
        z = (published * STEP - centre) / SIGMA
        radius, angle = bits_for(z)
        parts = np.array([radius >> 64, radius % 2**64, angle >> 64, angle % 2**64], "<u8").tobytes()
        w = torch.tensor([centre], dtype=torch.float64)
        released = noise.rounded(w, sigma=SIGMA, step=STEP, source=lambda n, parts=parts: parts)
        assert int(released[0]) == published


def log_ratio(steps: np.ndarray, here: np.ndarray, there: np.ndarray) -> np.ndarray:
    """Return the exact log-likelihood ratio of published integers. (draws, d) -> (draws,)"""

    def log_probability(centre: np.ndarray) -> np.ndarray:
        low, high = ((steps - 0.5) * STEP - centre) / SIGMA, ((steps + 0.5) * STEP - centre) / SIGMA
        flip = low > 0  # the tails in the form that does not cancel
        low, high = np.where(flip, -high, low), np.where(flip, -low, high)
        below = special.log_ndtr(low) - special.log_ndtr(high)
        return np.asarray((special.log_ndtr(high) + np.log1p(-np.exp(below))).sum(1))

    return np.asarray(log_probability(here) - log_probability(there))


@pytest.mark.parametrize("shift", [0.5, 1.0, 2.0])
def test_the_likelihood_ratio_between_centres_is_that_of_the_gaussian(shift: float) -> None:
    """δ(ε) measured with the optimal test over 200,000 draws lies in its confidence band."""
    draws, d = 200_000, 6
    direction = np.array([3.0, -1.0, 0.5, 0.0, 2.0, 1.0])
    here = np.array([0.0, 1.0, -0.3, 0.77, 1e-5, -12.0])
    there = here + shift * SIGMA * direction / np.linalg.norm(direction)
    ratios = []
    for centre in (here, there):
        tiled = torch.from_numpy(np.tile(centre, draws))
        steps = noise.noised(tiled, sigma=SIGMA, step=STEP).numpy().reshape(draws, d).astype(np.float64)
        ratios.append(log_ratio(steps, here, there))
    for epsilon in (0.0, 0.25, 0.5, 1.0, 2.0):
        p, q = (float((ratio > epsilon).mean()) for ratio in ratios)
        measured = p - math.exp(epsilon) * q
        error = math.sqrt((p * (1 - p) + math.exp(2 * epsilon) * q * (1 - q)) / draws)
        exact = delta_of(epsilon=epsilon, shift=shift)
        # Rounding can only lose information: with a grid of σ/8 at most, less than 0.3 % of the shift.
        least = delta_of(epsilon=epsilon, shift=shift * 0.997)
        assert least - 5 * error - 1e-9 < measured < exact + 5 * error + 1e-9, epsilon

"""Checklist line 4: the noise is at least what the stated (ε, δ) needs, on the public grid."""

from __future__ import annotations

from functools import lru_cache

from certificate.errors import NoiseTooSmall
from certificate.predicate import Predicate
from certificate.privacy import (
    COORDINATE_RESIDUAL,
    LARGEST_EPSILON,
    SMALLEST_DELTA,
    classical_sigma,
    delta_left,
    grid_step,
    sigma_for,
)
from certificate.statement import AnyPredicate
from certificate.tolerance import understates

_needed_analytic = lru_cache(maxsize=1024)(sigma_for)  # the releases of a chain mostly share their policy


def check_noise(predicate: AnyPredicate) -> str:
    """Check that σ is what (Δ*, ε, δ less p and the residual) needs, and that the grid is the public one."""
    if isinstance(predicate, Predicate):
        _check_grid(predicate)
    if predicate.bound.rule == "retrain":
        return "a retrain is a function of the retained data alone: it needs no noise"
    claim = predicate.guarantee.estimate or predicate.guarantee
    epsilon, delta = claim.epsilon, claim.delta
    if not epsilon or not delta:
        raise NoiseTooSmall(f"no noise gives (ε, δ) = ({epsilon}, {delta})")
    distance, sigma = predicate.bound.distance_target, predicate.noise.sigma
    remaining = delta_left(
        delta=delta,
        failure_probability=predicate.bound.failure_probability,
        residual=predicate.noise.residual,
        epsilon=epsilon,
    )
    if remaining <= 0:
        raise NoiseTooSmall("the failure probability uses up all of δ")
    if isinstance(predicate, Predicate) or predicate.guarantee.assurance in ("proved", "conditional"):
        _check_allowed(epsilon, delta - predicate.bound.failure_probability)
    needed = _needed_sigma(predicate, epsilon, remaining, distance)
    if understates(sigma, needed):
        raise NoiseTooSmall(
            f"σ is {sigma!r}; Δ* = {distance!r}, ε = {epsilon!r} and δ - p = {remaining!r} need {needed!r}"
        )
    label = "estimate only: " if predicate.guarantee.estimate else ""
    target = f"{predicate.noise.calibration}, for ε = {epsilon:g}, δ = {delta:g}"
    return f"{label}σ = {sigma:.6g} ≥ {needed:.6g}, {target}"


def _check_grid(predicate: Predicate) -> None:
    noise, dimension = predicate.noise, predicate.objective.dimension
    if noise.grid_step != grid_step(noise.sigma):
        raise NoiseTooSmall(
            f"the grid step is {noise.grid_step!r}; for σ = {noise.sigma!r} it is {grid_step(noise.sigma)!r}"
        )
    if noise.residual < dimension * COORDINATE_RESIDUAL:
        raise NoiseTooSmall(f"the residual {noise.residual!r} is too small for {dimension} weights")


def _check_allowed(epsilon: float, delta: float) -> None:
    """Beyond these the noise that is drawn, and not the exact Gaussian, would decide."""
    if delta < SMALLEST_DELTA:
        raise NoiseTooSmall(f"δ - p = {delta!r} is below {SMALLEST_DELTA:g}: no policy may ask for such a δ")
    if epsilon > LARGEST_EPSILON:
        raise NoiseTooSmall(f"ε = {epsilon!r} is above {LARGEST_EPSILON:g}: no policy may ask for such an ε")


def _needed_sigma(predicate: AnyPredicate, epsilon: float, delta: float, distance: float) -> float:
    classical = predicate.noise.calibration == "classical"
    if classical and epsilon >= 1:
        raise NoiseTooSmall(f"the classical calibration is proved only for ε < 1, not for {epsilon!r}")
    needed_sigma = classical_sigma if classical else _needed_analytic
    try:
        return needed_sigma(epsilon=epsilon, delta=delta, distance=distance)
    except (ValueError, ArithmeticError) as error:
        raise NoiseTooSmall(f"σ cannot be recomputed: {error}") from None

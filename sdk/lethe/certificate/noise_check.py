"""Checklist line 4: the noise is large enough for the stated (ε, δ), and lies on the public grid."""

from __future__ import annotations

from functools import lru_cache

from lethe.certificate.errors import NoiseTooSmall
from lethe.certificate.predicate import Predicate
from lethe.certificate.privacy import (
    COORDINATE_RESIDUAL,
    LARGEST_EPSILON,
    SMALLEST_DELTA,
    classical_sigma,
    delta_left,
    grid_step,
    sigma_for,
    understates,
)
from lethe.certificate.statement import AnyPredicate

_analytic_sigma = lru_cache(maxsize=1024)(sigma_for)  # the releases of a chain mostly share one policy


def check_noise(predicate: AnyPredicate) -> str:
    """Check line 4 and return the detail to show, or raise `NoiseTooSmall`.

    σ must be at least what Δ*, ε and δ need, after the failure probability p and the charge for the residual
    are subtracted from δ. The grid must be the one that belongs to σ.
    """
    if isinstance(predicate, Predicate):
        _check_grid(predicate)
    if predicate.bound.rule == "retrain":
        return "a retrain depends on the retained data alone, so it needs no noise"
    claim = predicate.guarantee.estimate or predicate.guarantee
    epsilon, delta = claim.epsilon, claim.delta
    if not epsilon or not delta:
        raise NoiseTooSmall(f"no amount of noise gives (ε, δ) = ({epsilon}, {delta})")
    distance, sigma = predicate.bound.distance_target, predicate.noise.sigma
    remaining = delta_left(
        delta=delta,
        failure_probability=predicate.bound.failure_probability,
        residual=predicate.noise.residual,
        epsilon=epsilon,
    )
    if remaining <= 0:
        raise NoiseTooSmall("the failure probability and the residual use up all of δ")
    if isinstance(predicate, Predicate) or predicate.guarantee.assurance in ("proved", "conditional"):
        _check_allowed(epsilon, delta - predicate.bound.failure_probability)
    needed = _needed_sigma(predicate, epsilon, remaining, distance)
    if understates(sigma, needed):
        raise NoiseTooSmall(
            f"σ is {sigma!r}, but Δ* = {distance!r}, ε = {epsilon!r}, δ - p = {remaining!r} need {needed!r}"
        )
    label = "estimate only: " if predicate.guarantee.estimate else ""
    target = f"for ε = {epsilon:g} and δ = {delta:g} ({predicate.noise.calibration} calibration)"
    return f"{label}σ = {sigma:.6g} is at least {needed:.6g}, the noise needed {target}"


def _check_grid(predicate: Predicate) -> None:
    noise, dimension = predicate.noise, predicate.objective.dimension
    if noise.grid_step != grid_step(noise.sigma):
        raise NoiseTooSmall(
            f"the grid step is {noise.grid_step!r}, but σ = {noise.sigma!r} needs {grid_step(noise.sigma)!r}"
        )
    if noise.residual < dimension * COORDINATE_RESIDUAL:
        raise NoiseTooSmall(f"the residual {noise.residual!r} is too small for {dimension} weights")


def _check_allowed(epsilon: float, delta: float) -> None:
    """Refuse an ε or δ outside the limits for policies, where the residual of the noise would matter."""
    if delta < SMALLEST_DELTA:
        raise NoiseTooSmall(
            f"δ - p = {delta!r} is below {SMALLEST_DELTA:g}, the smallest δ that a policy may ask for"
        )
    if epsilon > LARGEST_EPSILON:
        raise NoiseTooSmall(
            f"ε = {epsilon!r} is above {LARGEST_EPSILON:g}, the largest ε that a policy may ask for"
        )


def _needed_sigma(predicate: AnyPredicate, epsilon: float, delta: float, distance: float) -> float:
    classical = predicate.noise.calibration == "classical"
    if classical and epsilon >= 1:
        raise NoiseTooSmall(f"the classical calibration is proved only for ε < 1, not for ε = {epsilon!r}")
    calibrate = classical_sigma if classical else _analytic_sigma
    try:
        return calibrate(epsilon=epsilon, delta=delta, distance=distance)
    except (ValueError, ArithmeticError) as error:
        raise NoiseTooSmall(f"σ cannot be recomputed: {error}") from None

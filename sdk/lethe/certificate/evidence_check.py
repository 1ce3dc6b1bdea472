"""Checklist line 8: the evidence opens the commitment, and Δ recomputed from it is within Δ*.

Evidence of format 2 must also agree with itself and with the statement (`evidence_consistency`).
"""

from __future__ import annotations

import math
from fractions import Fraction

from certificate.errors import EvidenceMismatch
from certificate.evidence import Curvature, EvidenceRecord, LanczosRun, commit
from certificate.evidence_consistency import check_consistency
from certificate.predicate import Predicate
from certificate.statement import AnyPredicate
from certificate.tolerance import RELATIVE, overstates, understates


def check_evidence(record: EvidenceRecord, predicate: AnyPredicate) -> str:
    """Check line 8 and return the detail to show, or raise `EvidenceMismatch`."""
    if commit(record) != predicate.evidence.commitment:
        raise EvidenceMismatch("the evidence is not the record the certificate commits to")
    if record.certificate_id != predicate.certificate_id or record.rule != predicate.bound.rule:
        raise EvidenceMismatch("the evidence is of another certificate or another rule")
    if isinstance(predicate, Predicate):
        check_consistency(record, predicate)
    distance = _recomputed_distance(record, predicate)
    if isinstance(predicate, Predicate) and overstates(record.distance, distance):
        raise EvidenceMismatch(
            f"the evidence says Δ = {record.distance!r}, its own numbers give {distance!r}"
        )
    if understates(record.distance, distance):
        raise EvidenceMismatch(
            f"the evidence says Δ = {record.distance!r}, its own numbers give {distance!r}"
        )
    target = predicate.bound.distance_target
    if max(record.distance, distance) > target * (1 + RELATIVE):
        raise EvidenceMismatch(f"Δ = {max(record.distance, distance)!r} is above Δ* = {target!r}")
    return f"commitment opens, {_outcome(predicate)}{_unlisted(record, predicate)}"


def _unlisted(record: EvidenceRecord, predicate: AnyPredicate) -> str:
    """A run of k steps has k Ritz values, or one for each dimension."""
    runs = record.curvature.runs if record.curvature else ()
    full = predicate.objective.dimension
    if all(len(run.ritz_values) in (run.steps, full) for run in runs):
        return ""
    return "; not all Ritz values are listed, so how many steps were made is the issuer's word"


def _outcome(predicate: AnyPredicate) -> str:
    match predicate.bound.rule:
        case "B1" | "B2":
            return f"Δ recomputed by {predicate.bound.rule} is within Δ*"
        case "retrain":
            return "a retrain has no distance to bound"
        case published:
            return f"Δ is within Δ*; it was computed by {published}'s own formula and is not recomputed here"


def _recomputed_distance(record: EvidenceRecord, predicate: AnyPredicate) -> float:
    regularisation, target = predicate.objective.regularisation, predicate.bound.distance_target
    if predicate.bound.rule in ("B1", "B2") and not record.rounding_error > 0:
        raise EvidenceMismatch("the rounding error is 0: no gradient is computed without one")
    if predicate.bound.rule == "B1":
        if record.rounding_error / regularisation >= target:
            raise EvidenceMismatch("the rounding error alone is as large as Δ* allows")
        return distance_b1(record.gradient_norm, record.rounding_error, regularisation)
    if predicate.bound.rule == "B2":
        if record.curvature is None:
            raise EvidenceMismatch("rule B2 needs curvature, and the evidence has none")
        return _recomputed_b2(record, record.curvature, predicate)
    if isinstance(predicate, Predicate) and predicate.bound.rule == "retrain":
        return 0.0
    return record.distance


def _recomputed_b2(record: EvidenceRecord, curvature: Curvature, predicate: AnyPredicate) -> float:
    spent = math.fsum(run.failure_probability for run in curvature.runs)
    if spent > predicate.bound.failure_probability * (1 + RELATIVE):
        raise EvidenceMismatch(f"the p_j sum to {spent!r}, above p = {predicate.bound.failure_probability!r}")
    _check_source(curvature, predicate)
    _check_floor(curvature, predicate)
    if not curvature.hessian_lipschitz > 0:
        raise EvidenceMismatch("M = 0: no network's Hessian is constant")
    gradient = _up(record.gradient_norm + record.rounding_error)
    h = curvature.hessian_lipschitz * gradient / curvature.floor**2
    if not h < 0.5:
        raise EvidenceMismatch(f"h = {h!r} is not below 1/2")
    if understates(curvature.kantorovich, h) or (
        isinstance(predicate, Predicate) and overstates(curvature.kantorovich, h)
    ):
        raise EvidenceMismatch(f"the evidence says h = {curvature.kantorovich!r}, its own numbers give {h!r}")
    if understates(curvature.ball_radius, 2 * gradient / curvature.floor):
        raise EvidenceMismatch("M was derived on a ball smaller than 2G/μ₀")
    return distance_b2(
        record.gradient_norm, record.rounding_error, curvature.floor, curvature.hessian_lipschitz
    )


def _check_source(curvature: Curvature, predicate: AnyPredicate) -> None:
    if predicate.guarantee.assurance == "conditional" and curvature.hessian_lipschitz_source != "analytic":
        raise EvidenceMismatch("M was sampled; that supports an estimate only")


def _check_floor(curvature: Curvature, predicate: AnyPredicate) -> None:
    floors = [_floor_of(run, predicate) for run in curvature.runs]
    best = max((floor for floor in floors if floor is not None), default=None)
    if best is None:
        raise EvidenceMismatch("no Lanczos run of the evidence certifies a curvature floor")
    if curvature.floor <= 0:
        raise EvidenceMismatch(f"μ₀ = {curvature.floor!r} is not above 0")
    if curvature.floor > best * (1 + RELATIVE) or best <= 0:
        raise EvidenceMismatch(f"the evidence says μ₀ = {curvature.floor!r}, its Ritz values give {best!r}")


def _floor_of(run: LanczosRun, predicate: AnyPredicate) -> float | None:
    if run.ritz_values and (run.ritz_min != min(run.ritz_values) or run.ritz_max != max(run.ritz_values)):
        raise EvidenceMismatch("the extreme Ritz values are not the extremes of those listed")
    largest = max(abs(run.ritz_min), abs(run.ritz_max))
    if run.ritz_max < run.ritz_min or run.rounding_slack < run.steps * 2.0**-53 * largest:
        raise EvidenceMismatch("no Lanczos run has such Ritz values, or rounds so little")
    floor = curvature_floor(run, predicate.objective.dimension)
    if floor is None or run.route == "direct":
        return floor
    return floor + predicate.objective.regularisation  # ∇²f = GGN + S + λI with GGN ⪰ 0


def distance_b1(gradient_norm: float, rounding_error: float, regularisation: float) -> float:
    """Δ = G/λ with G = ‖g‖ + e, rounded up.

    >>> distance_b1(3e-6, 0.0, 0.5) >= 6e-6
    True
    """
    exact = (Fraction(gradient_norm) + Fraction(rounding_error)) / Fraction(regularisation)
    value = float(exact)
    return value if Fraction(value) >= exact else _up(value)


def distance_b2(gradient_norm: float, rounding_error: float, floor: float, hessian_lipschitz: float) -> float:
    """Δ = 2G/(μ₀·(1 + √(1 - 2h))), h = M·G/μ₀², rounded up; this form does not cancel.

    >>> round(distance_b2(0.01, 0.0, 1.0, 10.0), 9)
    0.010557281
    """
    gradient = _up(gradient_norm + rounding_error)
    h = hessian_lipschitz * gradient / floor**2 * (1 + 2**-50)
    root = math.sqrt(max(0.0, 1 - 2 * h - 2**-52)) * (1 - 2**-51)
    return 2 * gradient / (floor * (1 + root)) * (1 + 2**-49)


def curvature_floor(run: LanczosRun, dimension: int) -> float | None:
    """θ_min - ε_k·range less the rounding slack, with probability at least 1 - p_j; None if k is too small.

    Kuczyński & Woźniakowski 1992, at both ends: √ε_k = ln(3.296·√d/p_j)/(2k - 1), ε_k < 1/4 (the slack's
    own estimate of ‖A‖ needs that), and range ≤ (θ_max - θ_min)/(1 - 2ε_k).
    """
    spread = (math.log(3.296 * math.sqrt(dimension) / run.failure_probability) / (2 * run.steps - 1)) ** 2
    if not spread < 0.25:
        return None
    width = (run.ritz_max - run.ritz_min) / (1 - 2 * spread)
    return run.ritz_min - spread * width - run.rounding_slack


def _up(value: float) -> float:
    return math.nextafter(value, math.inf)

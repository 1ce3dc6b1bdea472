"""Checklist line 8: the evidence opens the commitment, and Δ recomputed from it is within Δ*.

For a certificate of format 2, the evidence must also be consistent with itself and with the statement. One
run of the service writes a record, so numbers that it writes twice must be equal and numbers that follow from
others must follow: an issuer who edits one number must edit all that depend on it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from itertools import pairwise

from lethe.certificate.assurance import BASELINES, CONVEX_FAMILIES
from lethe.certificate.errors import EvidenceMismatch
from lethe.certificate.evidence import (
    ClassDrift,
    Curvature,
    EvidenceRecord,
    LanczosRun,
    Utility,
    commit,
    commit_parent,
)
from lethe.certificate.predicate import Predicate
from lethe.certificate.privacy import TOLERANCE, agrees, overstates, understates
from lethe.certificate.statement import AnyPredicate

_UNIT = 2.0**-53  # unit roundoff of double precision
_CLOSE = 1e-9


def check_evidence(record: EvidenceRecord, predicate: AnyPredicate) -> str:
    """Check line 8 and return the detail to show, or raise `EvidenceMismatch`."""
    if commit(record) != predicate.evidence.commitment:
        raise EvidenceMismatch("the evidence is not the record that the certificate commits to")
    if record.certificate_id != predicate.certificate_id or record.rule != predicate.bound.rule:
        raise EvidenceMismatch("the evidence belongs to another certificate or another rule")
    if isinstance(predicate, Predicate):
        _check_consistency(record, predicate)
    distance = _recompute_distance(record, predicate)
    if understates(record.distance, distance) or (
        isinstance(predicate, Predicate) and overstates(record.distance, distance)
    ):
        raise EvidenceMismatch(
            f"the evidence states Δ = {record.distance!r}, but its own numbers give {distance!r}"
        )
    target = predicate.bound.distance_target
    if max(record.distance, distance) > target * (1 + TOLERANCE):
        raise EvidenceMismatch(f"Δ = {max(record.distance, distance)!r} is above Δ* = {target!r}")
    return f"the commitment opens; {_outcome(predicate)}{_missing_ritz_values(record, predicate)}"


def _missing_ritz_values(record: EvidenceRecord, predicate: AnyPredicate) -> str:
    """Mention a run that does not list all its Ritz values: one per step, or one per dimension."""
    runs = record.curvature.runs if record.curvature else ()
    full = predicate.objective.dimension
    if all(len(run.ritz_values) in (run.steps, full) for run in runs):
        return ""
    return "; some Ritz values are missing, so only the issuer vouches for the number of steps"


def _outcome(predicate: AnyPredicate) -> str:
    match predicate.bound.rule:
        case "B1" | "B2":
            return f"Δ, recomputed by rule {predicate.bound.rule}, is within Δ*"
        case "retrain":
            return "a retrain has no distance to bound"
        case method:
            return f"Δ is within Δ*, but it comes from the formula of {method} and is not recomputed here"


def _recompute_distance(record: EvidenceRecord, predicate: AnyPredicate) -> float:
    regularisation, target = predicate.objective.regularisation, predicate.bound.distance_target
    if predicate.bound.rule in ("B1", "B2") and not record.rounding_error > 0:
        raise EvidenceMismatch("the rounding error is 0, but every computed gradient has one")
    if predicate.bound.rule == "B1":
        if record.rounding_error / regularisation >= target:
            raise EvidenceMismatch("the rounding error alone is as large as Δ* allows")
        return distance_b1(record.gradient_norm, record.rounding_error, regularisation)
    if predicate.bound.rule == "B2":
        if record.curvature is None:
            raise EvidenceMismatch("rule B2 needs curvature, but the evidence has none")
        return _recompute_b2(record, record.curvature, predicate)
    if isinstance(predicate, Predicate) and predicate.bound.rule == "retrain":
        return 0.0
    return record.distance


def _recompute_b2(record: EvidenceRecord, curvature: Curvature, predicate: AnyPredicate) -> float:
    spent = math.fsum(run.failure_probability for run in curvature.runs)
    if spent > predicate.bound.failure_probability * (1 + TOLERANCE):
        raise EvidenceMismatch(
            f"the p_j sum to {spent!r}, which is above p = {predicate.bound.failure_probability!r}"
        )
    _check_source(curvature, predicate)
    _check_floor(curvature, predicate)
    if not curvature.hessian_lipschitz > 0:
        raise EvidenceMismatch("M = 0, but no network has a constant Hessian")
    gradient = _up(record.gradient_norm + record.rounding_error)
    h = curvature.hessian_lipschitz * gradient / curvature.floor**2
    if not h < 0.5:
        raise EvidenceMismatch(f"h = {h!r} is not below 1/2")
    if understates(curvature.kantorovich, h) or (
        isinstance(predicate, Predicate) and overstates(curvature.kantorovich, h)
    ):
        raise EvidenceMismatch(
            f"the evidence states h = {curvature.kantorovich!r}, but its own numbers give {h!r}"
        )
    if understates(curvature.ball_radius, 2 * gradient / curvature.floor):
        raise EvidenceMismatch("M was derived on a ball smaller than 2G/μ₀")
    return distance_b2(
        record.gradient_norm, record.rounding_error, curvature.floor, curvature.hessian_lipschitz
    )


def _check_source(curvature: Curvature, predicate: AnyPredicate) -> None:
    if predicate.guarantee.assurance == "conditional" and curvature.hessian_lipschitz_source != "analytic":
        raise EvidenceMismatch("M was sampled, which supports only an estimate")


def _check_floor(curvature: Curvature, predicate: AnyPredicate) -> None:
    floors = [_floor_of(run, predicate) for run in curvature.runs]
    best = max((floor for floor in floors if floor is not None), default=None)
    if best is None:
        raise EvidenceMismatch("no Lanczos run in the evidence certifies a curvature floor")
    if curvature.floor <= 0:
        raise EvidenceMismatch(f"μ₀ = {curvature.floor!r} is not above 0")
    if curvature.floor > best * (1 + TOLERANCE) or best <= 0:
        raise EvidenceMismatch(
            f"the evidence states μ₀ = {curvature.floor!r}, but its Ritz values give {best!r}"
        )


def _floor_of(run: LanczosRun, predicate: AnyPredicate) -> float | None:
    if run.ritz_values and (run.ritz_min != min(run.ritz_values) or run.ritz_max != max(run.ritz_values)):
        raise EvidenceMismatch("the stated extreme Ritz values are not the extremes of those listed")
    largest = max(abs(run.ritz_min), abs(run.ritz_max))
    if run.ritz_max < run.ritz_min or run.rounding_slack < run.steps * 2.0**-53 * largest:
        raise EvidenceMismatch("no Lanczos run can have such Ritz values or such small rounding errors")
    floor = curvature_floor(run, predicate.objective.dimension)
    if floor is None or run.route == "direct":
        return floor
    return floor + predicate.objective.regularisation  # ∇²f = GGN + S + λI with GGN ⪰ 0


def _check_consistency(record: EvidenceRecord, predicate: Predicate) -> None:
    """Check that every part of the record agrees with the others and with the statement."""
    _check_rounding(record, predicate)
    _check_parts(record, predicate)
    _check_trace(record)
    if record.curvature is not None:
        _check_runs(record.curvature, predicate.objective.dimension)
    if record.shift is not None:
        _check_class_drift(record.shift, predicate)
    _check_posterior(record, predicate)
    _check_parent(record, predicate)
    if record.utility is not None:
        _check_utility(record.utility)


def _check_utility(utility: Utility) -> None:
    """Check that F1 is in points, from 0 to 100."""
    scores = [score for score in (utility.f1_before, utility.f1_after) if score is not None]
    if any(not 0 <= score <= 100 for score in scores):
        raise EvidenceMismatch("F1 is not between 0 and 100 points")


def _check_rounding(record: EvidenceRecord, predicate: Predicate) -> None:
    """Check that the rounding error is at least d units in the last place.

    No smaller bound exists for the norm of d numbers in double precision.
    """
    rule, level = predicate.bound.rule, predicate.guarantee.assurance
    proved = rule == "B1" or (rule == "B2" and level == "conditional")
    entries = predicate.objective.dimension if proved else 0
    if record.rounding_error <= 0 or record.rounding_error < entries * _UNIT * record.gradient_norm:
        raise EvidenceMismatch(
            f"the rounding error {record.rounding_error!r} is smaller than double precision allows"
        )


def _check_parts(record: EvidenceRecord, predicate: Predicate) -> None:
    rule = predicate.bound.rule
    published = rule in BASELINES
    if (rule == "B2") != (record.curvature is not None):
        raise EvidenceMismatch(f"rule {rule} {'needs' if rule == 'B2' else 'measures no'} curvature")
    if (record.paper_distance is not None) != published or (record.method and not published):
        raise EvidenceMismatch(
            "the figures of a baseline must be stated for a baseline and for no other rule"
        )
    if published and record.paper_distance != record.distance:
        raise EvidenceMismatch("the distance of the baseline is stated twice, with two values")


def _check_trace(record: EvidenceRecord) -> None:
    """Check that the trace ends at the released point and runs forward. With B2, each solve restarts it."""
    if not record.trace:
        return
    last = record.trace[-1].gradient_norm
    if abs(last - record.gradient_norm) > 2 * record.rounding_error + _CLOSE * record.gradient_norm:
        raise EvidenceMismatch(
            f"the last step ended at the gradient {last!r}, but the evidence states {record.gradient_norm!r}"
        )
    for before, after in pairwise(record.trace):
        backwards = after.passes < before.passes or after.seconds < before.seconds
        if backwards and record.rule != "B2":
            raise EvidenceMismatch("the passes or seconds of the trace run backwards")
    most = max(step.seconds for step in record.trace)
    if record.seconds_total is not None and record.seconds_total < most * (1 - _CLOSE):
        raise EvidenceMismatch("the trace took longer than the whole run")
    passes = record.solver.get("passes")
    counted = isinstance(passes, int | float) and not isinstance(passes, bool)
    if counted and float(passes or 0) < max(step.passes for step in record.trace) * (1 - _CLOSE):
        raise EvidenceMismatch("the trace made more passes than the whole run")


def _check_runs(curvature: Curvature, dimension: int) -> None:
    """Check that a run of k steps lists k Ritz values, or one per dimension once the space is exhausted."""
    for run in curvature.runs:
        if len(run.ritz_values) != min(run.steps, dimension):
            raise EvidenceMismatch(
                f"a Lanczos run of {run.steps} steps on {dimension} weights lists "
                f"{len(run.ritz_values)} Ritz values"
            )


def _check_class_drift(drift: ClassDrift, predicate: Predicate) -> None:
    """Check that class counts add up, match the deletion set, and give the stated divergences."""
    classes = drift.original.keys() | drift.erased.keys() | drift.retained.keys()
    for name in classes:
        left = drift.original.get(name, 0) - drift.erased.get(name, 0)
        if left != drift.retained.get(name, 0):
            raise EvidenceMismatch(
                "the class counts do not add up: erased and retained records are not the original ones"
            )
    erased, stated = sum(drift.erased.values()), predicate.deletion_set.records
    if stated is not None and erased != stated:
        raise EvidenceMismatch(
            f"the classes contain {erased} erased records, but the certificate states {stated}"
        )
    if erased < predicate.deletion_set.people:
        raise EvidenceMismatch(f"there are fewer erased records ({erased}) than people erased")
    forward, backward = (
        _divergence(drift.retained, drift.original),
        _divergence(drift.original, drift.retained),
    )
    if not _same(forward, drift.kl_retained_original) or not _same(backward, drift.kl_original_retained):
        raise EvidenceMismatch("the stated divergences do not follow from the class counts")


def _divergence(p: Mapping[str, int], q: Mapping[str, int]) -> float | None:
    """Return KL(P‖Q) of two histograms in nats, or None if it is infinite."""
    total_p, total_q = sum(p.values()), sum(q.values())
    if any(count and not q.get(name) for name, count in p.items()):
        return None
    return max(
        math.fsum(
            count / total_p * math.log(count * total_q / (total_p * q[name]))
            for name, count in p.items()
            if count
        ),
        0.0,
    )


def _same(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) <= _CLOSE


def _check_posterior(record: EvidenceRecord, predicate: Predicate) -> None:
    """Check the distance by B1 at the output of a baseline or a retrain, if the family is convex."""
    if record.posterior_distance is None:
        return
    if predicate.bound.rule in ("B1", "B2"):
        raise EvidenceMismatch(
            "with rule B1 or B2 the certified distance is the only one, but the evidence states a second one"
        )
    gradient = record.gradient_norm + record.rounding_error
    expected = gradient / predicate.objective.regularisation
    convex = predicate.objective.family in CONVEX_FAMILIES or predicate.objective.linearisation is not None
    if convex and not agrees(record.posterior_distance, expected):
        raise EvidenceMismatch(f"B1 gives {expected!r} at the output, not {record.posterior_distance!r}")


def _check_parent(record: EvidenceRecord, predicate: Predicate) -> None:
    """Check that the evidence opens the commitment to version 0, whose digest is not public."""
    if (record.parent is None) != (predicate.parent.commitment is None):
        raise EvidenceMismatch(
            "the evidence must open a commitment to the parent if and only if the parent is version 0"
        )
    if record.parent is not None and commit_parent(record.parent) != predicate.parent.commitment:
        raise EvidenceMismatch("the evidence does not open the commitment to the parent's weights")


def distance_b1(gradient_norm: float, rounding_error: float, regularisation: float) -> float:
    """Return Δ = G/λ with G = ‖g‖ + e (gradient norm plus rounding error), rounded up.

    >>> distance_b1(3e-6, 0.0, 0.5) >= 6e-6
    True
    """
    exact = (Fraction(gradient_norm) + Fraction(rounding_error)) / Fraction(regularisation)
    value = float(exact)
    return value if Fraction(value) >= exact else _up(value)


def distance_b2(gradient_norm: float, rounding_error: float, floor: float, hessian_lipschitz: float) -> float:
    """Return Δ = 2G/(μ₀·(1 + √(1 - 2h))) with h = M·G/μ₀², rounded up. This form does not cancel.

    >>> round(distance_b2(0.01, 0.0, 1.0, 10.0), 9)
    0.010557281
    """
    gradient = _up(gradient_norm + rounding_error)
    h = hessian_lipschitz * gradient / floor**2 * (1 + 2**-50)
    root = math.sqrt(max(0.0, 1 - 2 * h - 2**-52)) * (1 - 2**-51)
    return 2 * gradient / (floor * (1 + root)) * (1 + 2**-49)


def curvature_floor(run: LanczosRun, dimension: int) -> float | None:
    """Return a lower bound on the eigenvalues that holds with probability 1 - p_j, or None if k is too small.

    The bound is θ_min - ε_k·range minus the rounding slack, where θ_min and θ_max are the extreme Ritz values
    (Kuczyński & Woźniakowski 1992, applied at both ends): √ε_k = ln(3.296·√d/p_j)/(2k - 1), and
    range ≤ (θ_max - θ_min)/(1 - 2ε_k). It needs ε_k < 1/4, because the slack's own estimate of ‖A‖ does.
    """
    spread = (math.log(3.296 * math.sqrt(dimension) / run.failure_probability) / (2 * run.steps - 1)) ** 2
    if not spread < 0.25:
        return None
    width = (run.ritz_max - run.ritz_min) / (1 - 2 * spread)
    return run.ritz_min - spread * width - run.rounding_slack


def _up(value: float) -> float:
    return math.nextafter(value, math.inf)

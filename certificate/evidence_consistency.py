"""Whether an evidence record agrees with itself and with the statement it supports.

A record is written by one run of the service. What that run writes twice must be equal, and what follows from
other fields must follow: an issuer who edits a figure has to edit all that depend on it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise

from certificate.errors import EvidenceMismatch
from certificate.evidence import Curvature, EvidenceRecord, Shift, Utility, commit_parent
from certificate.predicate import Predicate
from certificate.tolerance import agrees

_UNIT = 2.0**-53
_PUBLISHED = ("tr-paper", "guo2020", "zhang2024")
_CLOSE = 1e-9
_CONVEX = ("softmax", "logistic", "ridge")


def check_consistency(record: EvidenceRecord, predicate: Predicate) -> None:
    """Raise `EvidenceMismatch` unless every part of the record agrees with the others."""
    _check_rounding(record, predicate)
    _check_parts(record, predicate)
    _check_trace(record)
    if record.curvature is not None:
        _check_runs(record.curvature, predicate.objective.dimension)
    if record.shift is not None:
        _check_counts(record.shift, predicate)
    _check_posterior(record, predicate)
    _check_parent(record, predicate)
    if record.utility is not None:
        _check_utility(record.utility)


def _check_utility(utility: Utility) -> None:
    """F1 is in points."""
    scores = [score for score in (utility.f1_before, utility.f1_after) if score is not None]
    if any(not 0 <= score <= 100 for score in scores):
        raise EvidenceMismatch("F1 is not between 0 and 100 points")


def _check_rounding(record: EvidenceRecord, predicate: Predicate) -> None:
    """The bound for a norm of d numbers in double precision counts d units in the last place at least."""
    rule, tier = predicate.bound.rule, predicate.guarantee.assurance
    proved = rule == "B1" or (rule == "B2" and tier == "conditional")
    entries = predicate.objective.dimension if proved else 0
    if record.rounding_error <= 0 or record.rounding_error < entries * _UNIT * record.gradient_norm:
        raise EvidenceMismatch(
            f"the rounding error {record.rounding_error!r} is smaller than double precision allows"
        )


def _check_parts(record: EvidenceRecord, predicate: Predicate) -> None:
    rule = predicate.bound.rule
    published = rule in _PUBLISHED
    if (rule == "B2") != (record.curvature is not None):
        raise EvidenceMismatch(f"rule {rule} {'needs' if rule == 'B2' else 'measures no'} curvature")
    if (record.paper_distance is not None) != published or (record.method and not published):
        raise EvidenceMismatch("a published method's own figures belong to a published method")
    if published and record.paper_distance != record.distance:
        raise EvidenceMismatch("the published method's distance is stated twice, with two values")


def _check_trace(record: EvidenceRecord) -> None:
    """The last point kept is the one released. Counters run forward; with B2, each solve restarts them."""
    if not record.trace:
        return
    last = record.trace[-1].gradient_norm
    if abs(last - record.gradient_norm) > 2 * record.rounding_error + _CLOSE * record.gradient_norm:
        raise EvidenceMismatch(
            f"the last step ended with a gradient of {last!r}, the evidence says {record.gradient_norm!r}"
        )
    for before, after in pairwise(record.trace):
        backwards = after.passes < before.passes or after.seconds < before.seconds
        if backwards and record.rule != "B2":
            raise EvidenceMismatch("the trace's passes or seconds run backwards")
    most = max(step.seconds for step in record.trace)
    if record.seconds_total is not None and record.seconds_total < most * (1 - _CLOSE):
        raise EvidenceMismatch("the trace took longer than the whole run")
    passes = record.solver.get("passes")
    counted = isinstance(passes, int | float) and not isinstance(passes, bool)
    if counted and float(passes or 0) < max(step.passes for step in record.trace) * (1 - _CLOSE):
        raise EvidenceMismatch("the trace made more passes than the whole run")


def _check_runs(curvature: Curvature, dimension: int) -> None:
    """A run of k steps has k Ritz values, or one for each dimension once the space is exhausted."""
    for run in curvature.runs:
        if len(run.ritz_values) != min(run.steps, dimension):
            raise EvidenceMismatch(
                f"a Lanczos run of {run.steps} steps on {dimension} weights lists "
                f"{len(run.ritz_values)} Ritz values"
            )


def _check_counts(shift: Shift, predicate: Predicate) -> None:
    classes = shift.original.keys() | shift.erased.keys() | shift.retained.keys()
    for name in classes:
        left = shift.original.get(name, 0) - shift.erased.get(name, 0)
        if left != shift.retained.get(name, 0):
            raise EvidenceMismatch("the class counts do not add up: D is not F and R together")
    erased, stated = sum(shift.erased.values()), predicate.deletion_set.records
    if stated is not None and erased != stated:
        raise EvidenceMismatch(f"the classes hold {erased} erased records, the certificate says {stated}")
    if erased < predicate.deletion_set.people:
        raise EvidenceMismatch(f"{erased} erased records are fewer than the people erased")
    forward, backward = (
        _divergence(shift.retained, shift.original),
        _divergence(shift.original, shift.retained),
    )
    if not _same(forward, shift.kl_retained_original) or not _same(backward, shift.kl_original_retained):
        raise EvidenceMismatch("the divergences are not those of the class counts")


def _divergence(p: Mapping[str, int], q: Mapping[str, int]) -> float | None:
    """KL(P‖Q) of two histograms, in nats; None when it is infinite."""
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
    """B1 at the output of another rule, where the family is convex."""
    if record.posterior_distance is None:
        return
    if predicate.bound.rule in ("B1", "B2"):
        raise EvidenceMismatch("a distance by B1 or B2 is the certified one, not a second one")
    gradient = record.gradient_norm + record.rounding_error
    expected = gradient / predicate.objective.regularisation
    if predicate.objective.family in _CONVEX and not agrees(record.posterior_distance, expected):
        raise EvidenceMismatch(f"B1 gives {expected!r} at the output, not {record.posterior_distance!r}")


def _check_parent(record: EvidenceRecord, predicate: Predicate) -> None:
    """The evidence opens the commitment to version 0, whose digest is no public figure."""
    if (record.parent is None) != (predicate.parent.commitment is None):
        raise EvidenceMismatch("the evidence opens a commitment to the parent exactly when that is version 0")
    if record.parent is not None and commit_parent(record.parent) != predicate.parent.commitment:
        raise EvidenceMismatch("the evidence does not open the commitment to the parent's weights")

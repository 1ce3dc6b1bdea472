"""Which assurance a certificate of format version 1 may claim. These rules are frozen with the format."""

from __future__ import annotations

from certificate.errors import AssuranceUnfounded
from certificate.predicate import Assurance, Inequality, Rule
from certificate.predicate_v1 import PredicateV1
from certificate.records import printable

_ASSURANCE_OF_RULE: dict[Rule, frozenset[Assurance]] = {
    "B1": frozenset({"proved"}),
    "B2": frozenset({"conditional", "heuristic"}),
    "retrain": frozenset({"proved"}),
    "tr-paper": frozenset({"as-published"}),
    "guo2020": frozenset({"as-published"}),
    "zhang2024": frozenset({"as-published"}),
}

_INEQUALITIES: dict[Rule, frozenset[Inequality]] = {
    "B1": frozenset({"distance <= target", "rounding / lambda < target"}),
    "B2": frozenset({"distance <= target", "mu0 > 0", "h < 1/2", "sum p_j <= p"}),
    "retrain": frozenset(),
    "tr-paper": frozenset({"distance <= target"}),
    "guo2020": frozenset({"distance <= target"}),
    "zhang2024": frozenset({"distance <= target"}),
}


def required_assumptions(rule: Rule, assurance: Assurance) -> tuple[str, ...]:
    """Return the assumptions a certificate of version 1 had to name."""
    names = ["declared-origins", "floating-point-noise"]
    if rule == "B2":
        names.append("retraining-reaches-reference")
    if assurance == "heuristic":
        names.append("sampled-hessian-lipschitz")
    if assurance == "as-published":
        names.append("published-analysis")
    return tuple(names)


def check_assurance(predicate: PredicateV1) -> str:
    """Check what is particular to version 1; mechanism, family and p are checked for every version."""
    rule, assurance = predicate.bound.rule, predicate.guarantee.assurance
    if assurance not in _ASSURANCE_OF_RULE[rule]:
        raise AssuranceUnfounded(f"rule {rule} does not give the assurance {assurance!r}")
    if assurance in ("proved", "conditional") and not predicate.noise.data_independent:
        raise AssuranceUnfounded(f"{assurance} needs noise that does not depend on the data")
    named = {assumption.name for assumption in predicate.guarantee.assumptions}
    missing = [name for name in required_assumptions(rule, assurance) if name not in named]
    if missing:
        raise AssuranceUnfounded(f"the certificate does not name what it rests on: {', '.join(missing)}")
    unmet = _INEQUALITIES[rule] - set(predicate.bound.inequalities)
    if unmet:
        raise AssuranceUnfounded(
            f"rule {rule} needs what the certificate does not state: {', '.join(sorted(unmet))}"
        )
    family = printable(predicate.objective.family)
    return f"{assurance}, by rule {rule} on {family}, {len(named)} assumptions named"

"""Which assurance a release may claim, and what it must say it rests on.

Used on both sides: the issuer composes the guarantee with `guarantee_for`, the verifier holds it to
`check_assurance`.
"""

from __future__ import annotations

from collections.abc import Sequence

from certificate import assurance_v1
from certificate.errors import AssuranceUnfounded
from certificate.predicate import (
    Assurance,
    Estimate,
    Guarantee,
    Inequality,
    Mechanism,
    Predicate,
    Rule,
)
from certificate.records import printable
from certificate.statement import AnyPredicate
from certificate.vocabulary import LIMITS, AssumptionName, Limit, Loss, Reference, RegistrationWarning

# Families whose loss is convex in the weights, so that B1 needs nothing but λ.
CONVEX_FAMILIES = frozenset({"softmax", "logistic", "ridge"})
# Networks for which the Hessian's Lipschitz constant is derived, layer by layer, and not sampled.
ANALYTIC_FAMILIES = frozenset({"mlp", "allcnn"})
PUBLISHED_METHODS: frozenset[Rule] = frozenset({"tr-paper", "guo2020", "zhang2024"})
LOSS_OF_FAMILY: dict[str, Loss] = {
    "softmax": "cross-entropy",
    "logistic": "cross-entropy",
    "ridge": "half squared error",
    "mlp": "cross-entropy",
    "allcnn": "cross-entropy",
    "resnet18": "cross-entropy",
}
NOT_COVERED: tuple[Limit, ...] = tuple(LIMITS)

_REFERENCE: dict[Rule, Reference] = {
    "B1": "retained-minimiser",
    "B2": "retained-stationary-point",
    "retrain": "itself",
    "tr-paper": "as-published",
    "guo2020": "as-published",
    "zhang2024": "as-published",
}
# What each rule gives at best comes first; the second is what is left when something lowers it.
_ASSURANCE_OF_RULE: dict[Rule, tuple[Assurance, ...]] = {
    "B1": ("proved", "conditional"),
    "B2": ("conditional", "heuristic"),
    "retrain": ("proved", "conditional"),
    "tr-paper": ("as-published",),
    "guo2020": ("as-published",),
    "zhang2024": ("as-published",),
}
_INEQUALITIES: dict[Rule, frozenset[Inequality]] = {
    "B1": frozenset({"distance <= target", "rounding / lambda < target"}),
    "B2": frozenset({"distance <= target", "mu0 > 0", "h < 1/2", "sum p_j <= p"}),
    "retrain": frozenset(),
    "tr-paper": frozenset({"distance <= target"}),
    "guo2020": frozenset({"distance <= target"}),
    "zhang2024": frozenset({"distance <= target"}),
}


def loss_of(family: str) -> Loss:
    """Return the loss a family is trained with, in the certificate's vocabulary."""
    return LOSS_OF_FAMILY.get(family, "defined by a plug-in")


def lowered(
    assurance: Assurance, *, changed_after_refusal: bool, warnings: Sequence[RegistrationWarning]
) -> Assurance:
    """Return the tier that is left when choices may have depended on the records: conditional at best."""
    return "conditional" if assurance == "proved" and (changed_after_refusal or warnings) else assurance


def assumptions_for(
    rule: Rule,
    assurance: Assurance,
    *,
    changed_after_refusal: bool = False,
    warnings: Sequence[RegistrationWarning] = (),
    sums_floating_point_noise: bool = False,
) -> tuple[AssumptionName, ...]:
    """Return every assumption that a release of this kind rests on, in the order a certificate lists them."""
    named: dict[AssumptionName, bool] = {
        "declared-origins": True,
        "random-generator": True,
        "retraining-reaches-reference": rule == "B2",
        "curvature-rounding": rule == "B2",
        "sampled-hessian-lipschitz": assurance == "heuristic",
        "published-analysis": assurance == "as-published",
        "features-look-standardised": "features-look-standardised" in warnings,
        "choices-after-refusal": changed_after_refusal,
        "floating-point-noise": sums_floating_point_noise,
    }
    return tuple(name for name, needed in named.items() if needed)


def inequalities_of(rule: Rule) -> tuple[Inequality, ...]:
    """Return what a release under `rule` states, in the order a certificate lists it."""
    return tuple(sorted(_INEQUALITIES[rule]))


def guarantee_for(
    *,
    rule: Rule,
    assurance: Assurance,
    epsilon: float,
    delta: float,
    assumptions: tuple[AssumptionName, ...] | None = None,
) -> Guarantee:
    """Return the guarantee stated for a release by `rule`, with its assumptions and limits."""
    heuristic = assurance == "heuristic"
    return Guarantee(
        epsilon=None if heuristic else epsilon,
        delta=None if heuristic else delta,
        assurance=assurance,
        reference=_REFERENCE[rule],
        assumptions=assumptions_for(rule, assurance) if assumptions is None else assumptions,
        not_covered=NOT_COVERED,
        estimate=Estimate(epsilon=epsilon, delta=delta) if heuristic else None,
    )


def check_assurance(predicate: AnyPredicate) -> str:
    """Check line 5 and return the detail to show, or raise `AssuranceUnfounded`."""
    check_mechanism(predicate.mechanism, predicate.bound.rule)
    check_family(predicate)
    check_failure_probability(predicate)
    return (
        _check_v2(predicate) if isinstance(predicate, Predicate) else assurance_v1.check_assurance(predicate)
    )


def _check_v2(predicate: Predicate) -> str:
    rule, guarantee = predicate.bound.rule, predicate.guarantee
    if guarantee.assurance not in _ASSURANCE_OF_RULE[rule]:
        raise AssuranceUnfounded(f"rule {rule} does not give the assurance {guarantee.assurance!r}")
    _check_words(predicate)
    _check_tier(predicate)
    if rule == "retrain" and (guarantee.epsilon or guarantee.delta):
        raise AssuranceUnfounded("a retrain is its own reference: its ε and δ are 0")
    if predicate.bound.inequalities != inequalities_of(rule):
        raise AssuranceUnfounded(
            f"rule {rule} states exactly: {', '.join(inequalities_of(rule)) or 'nothing'}"
        )
    family = printable(predicate.objective.family)
    return (
        f"{guarantee.assurance}, by rule {rule} on {family}, {len(guarantee.assumptions)} assumptions named"
    )


def _check_words(predicate: Predicate) -> None:
    guarantee, objective = predicate.guarantee, predicate.objective
    if guarantee.reference != _REFERENCE[predicate.bound.rule]:
        raise AssuranceUnfounded(
            f"the reference {guarantee.reference!r} is not that of rule {predicate.bound.rule}"
        )
    if objective.loss != loss_of(objective.family):
        raise AssuranceUnfounded(
            f"the family {printable(objective.family)!r} is not trained with {objective.loss}"
        )
    if guarantee.not_covered != NOT_COVERED:
        raise AssuranceUnfounded("the list of what is not covered is not the complete one")


def _check_tier(predicate: Predicate) -> None:
    """The assumptions named are exactly those the release rests on, and the tier is lowered accordingly."""
    guarantee, own = predicate.guarantee, predicate.guarantee.assurance
    last = own == "as-published"
    changed = "choices-after-refusal" in guarantee.assumptions
    if not last and changed == predicate.noise.data_independent:
        raise AssuranceUnfounded(
            "data_independent is false exactly when ε, δ, Δ* or λ changed after a refusal, "
            "which the assumption choices-after-refusal says"
        )
    if last and predicate.noise.data_independent:
        raise AssuranceUnfounded("the noise of a published method depends on the data")
    needed = assumptions_for(
        predicate.bound.rule,
        own,
        changed_after_refusal=changed,
        warnings=predicate.objective.warnings,
        sums_floating_point_noise="floating-point-noise" in guarantee.assumptions,
    )
    if guarantee.assumptions != needed:
        odd = ", ".join(sorted(set(guarantee.assumptions) ^ set(needed)))
        raise AssuranceUnfounded(
            f"the assumptions named are not those the release rests on: {odd or 'another order'}"
        )
    _check_lowered(predicate, changed=changed)


def _check_lowered(predicate: Predicate, *, changed: bool) -> None:
    rule, own = predicate.bound.rule, predicate.guarantee.assurance
    if rule not in ("B1", "retrain"):
        return
    expected = lowered("proved", changed_after_refusal=changed, warnings=predicate.objective.warnings)
    if own != expected:
        raise AssuranceUnfounded(
            f"with what the certificate says of itself its tier is {expected}, not {own}"
        )


def check_mechanism(mechanism: Mechanism, rule: Rule) -> None:
    """Raise unless a release by `mechanism` can be bounded by `rule`."""
    allowed = {"tr": ("B1", "B2"), "discarded": tuple(_REFERENCE)}.get(mechanism, (mechanism,))
    if rule not in allowed:
        raise AssuranceUnfounded(f"mechanism {mechanism} is not bounded by rule {rule}")


def check_family(predicate: AnyPredicate) -> None:
    """Raise unless the rule's condition on the family holds."""
    family, rule = predicate.objective.family, predicate.bound.rule
    if rule in ("B1", "guo2020") and family not in CONVEX_FAMILIES:
        raise AssuranceUnfounded(
            f"rule {rule} needs a loss convex in the weights; {printable(family)!r} is not one of "
            f"{', '.join(sorted(CONVEX_FAMILIES))}"
        )
    conditional = rule == "B2" and predicate.guarantee.assurance == "conditional"
    if conditional and family not in ANALYTIC_FAMILIES:
        raise AssuranceUnfounded(
            f"a conditional guarantee needs a derived Hessian-Lipschitz constant; of {printable(family)!r} "
            f"none is known, of {', '.join(sorted(ANALYTIC_FAMILIES))} there is"
        )


def check_failure_probability(predicate: AnyPredicate) -> None:
    """Raise if a rule that cannot fail claims a failure probability, or B2 claims none."""
    probability = predicate.bound.failure_probability
    if (predicate.bound.rule == "B2") != (probability > 0):
        raise AssuranceUnfounded(
            f"rule {predicate.bound.rule} cannot have failure probability {probability!r}"
        )

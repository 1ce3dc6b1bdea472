"""Checklist line 5: which assurance a release may claim, and which assumptions it must state.

The issuer composes a guarantee with `guarantee_for`. The verifier checks it with `check_assurance`.
"""

from __future__ import annotations

from collections.abc import Sequence

from lethe.certificate.errors import AssuranceUnfounded
from lethe.certificate.predicate import (
    Assurance,
    Estimate,
    Guarantee,
    Inequality,
    Linearisation,
    Mechanism,
    Predicate,
    Rule,
)
from lethe.certificate.predicate_v1 import PredicateV1
from lethe.certificate.records import printable
from lethe.certificate.vocabulary import LIMITS, AssumptionName, Limit, Loss, Reference, RegistrationWarning

# Families whose loss is convex in the weights, so that rule B1 needs nothing but λ.
CONVEX_FAMILIES = frozenset({"softmax", "logistic", "ridge"})
# Networks whose gradient is computed layer by layer, so that its rounding error and, unless the network is
# linearised, the Hessian's Lipschitz constant are derived.
ANALYTIC_FAMILIES = frozenset({"mlp", "allcnn"})
BASELINES: frozenset[Rule] = frozenset({"tr-paper", "guo2020", "zhang2024"})
LOSS_OF_FAMILY: dict[str, Loss] = {
    "softmax": "cross-entropy",
    "logistic": "cross-entropy",
    "ridge": "half squared error",
    "mlp": "cross-entropy",
    "allcnn": "cross-entropy",
    "resnet18": "cross-entropy",
}
# Limits that only the certificate of a model with a representation states.
_REPRESENTATION_LIMITS: frozenset[Limit] = frozenset({"representation-training-data"})
NOT_COVERED: tuple[Limit, ...] = tuple(name for name in LIMITS if name not in _REPRESENTATION_LIMITS)

_REFERENCE: dict[Rule, Reference] = {
    "B1": "retained-minimiser",
    "B2": "retained-stationary-point",
    "retrain": "itself",
    "tr-paper": "as-published",
    "guo2020": "as-published",
    "zhang2024": "as-published",
}
# The best assurance that each rule gives, then the one that remains if something lowers it.
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
    """Return the loss that a family is trained with, in the certificate's vocabulary."""
    return LOSS_OF_FAMILY.get(family, "defined by a plug-in")


def _losses_of(family: str, *, linearised: bool) -> tuple[Loss, ...]:
    """Return the losses that a certificate may state. For rule B1 a plug-in's loss must be known."""
    if linearised and family not in LOSS_OF_FAMILY:
        return ("cross-entropy", "half squared error")
    return (loss_of(family),)


def linearisation_of(family: str, layers: Sequence[str]) -> Linearisation:
    """Return how a network of this family is linearised, as a certificate states it."""
    return Linearisation(
        layers=tuple(layers),
        rounding="derived" if family in ANALYTIC_FAMILIES else "modelled",
        architecture="built-in" if family in LOSS_OF_FAMILY else "plug-in",
    )


def lower_assurance(
    assurance: Assurance, *, changed_after_refusal: bool, warnings: Sequence[RegistrationWarning]
) -> Assurance:
    """Return "conditional" instead of "proved" if choices may have depended on the erased records."""
    return "conditional" if assurance == "proved" and (changed_after_refusal or warnings) else assurance


def assumptions_for(
    rule: Rule,
    assurance: Assurance,
    *,
    changed_after_refusal: bool = False,
    warnings: Sequence[RegistrationWarning] = (),
    sums_floating_point_noise: bool = False,
    represented: bool = False,
    linearisation: Linearisation | None = None,
) -> tuple[AssumptionName, ...]:
    """Return every assumption that such a release depends on, in the order of the certificate.

    `represented` says whether the model has a representation, and `linearisation` how its network was
    linearised, if it was.
    """
    plugged_in = linearisation is not None and linearisation.architecture == "plug-in"
    modelled = linearisation is not None and linearisation.rounding == "modelled"
    needed: dict[AssumptionName, bool] = {
        "declared-origins": True,
        "rows-represented-independently": represented,
        "random-generator": True,
        "module-treats-rows-alone": plugged_in,
        "modelled-rounding": modelled and rule == "B1",
        "retraining-reaches-reference": rule == "B2",
        "curvature-rounding": rule == "B2",
        "sampled-hessian-lipschitz": assurance == "heuristic",
        "published-analysis": assurance == "as-published",
        "features-look-standardised": "features-look-standardised" in warnings,
        "choices-after-refusal": changed_after_refusal,
        "floating-point-noise": sums_floating_point_noise,
    }
    return tuple(name for name, is_needed in needed.items() if is_needed)


def not_covered_for(*, represented: bool) -> tuple[Limit, ...]:
    """Return everything that the guarantee of a model with or without a representation does not cover."""
    return tuple(LIMITS) if represented else NOT_COVERED


def inequalities_of(rule: Rule) -> tuple[Inequality, ...]:
    """Return the inequalities that a release under `rule` must state, in the order of the certificate."""
    return tuple(sorted(_INEQUALITIES[rule]))


def guarantee_for(
    *,
    rule: Rule,
    assurance: Assurance,
    epsilon: float,
    delta: float,
    assumptions: tuple[AssumptionName, ...] | None = None,
    represented: bool = False,
    linearisation: Linearisation | None = None,
) -> Guarantee:
    """Return the guarantee of a release by `rule`, with its assumptions and limits.

    `represented` says whether the model has a representation, and `linearisation` how its network was
    linearised, if it was.
    """
    heuristic = assurance == "heuristic"
    return Guarantee(
        epsilon=None if heuristic else epsilon,
        delta=None if heuristic else delta,
        assurance=assurance,
        reference=_REFERENCE[rule],
        assumptions=(
            assumptions_for(rule, assurance, represented=represented, linearisation=linearisation)
            if assumptions is None
            else assumptions
        ),
        not_covered=not_covered_for(represented=represented),
        estimate=Estimate(epsilon=epsilon, delta=delta) if heuristic else None,
    )


def check_assurance(predicate: Predicate | PredicateV1) -> str:
    """Check line 5 and return the detail to show, or raise `AssuranceUnfounded`."""
    check_mechanism(predicate.mechanism, predicate.bound.rule)
    check_family(predicate)
    check_failure_probability(predicate)
    return _check_v2(predicate) if isinstance(predicate, Predicate) else _check_v1(predicate)


def _check_v2(predicate: Predicate) -> str:
    rule, guarantee = predicate.bound.rule, predicate.guarantee
    if guarantee.assurance not in _ASSURANCE_OF_RULE[rule]:
        raise AssuranceUnfounded(f"rule {rule} does not give the assurance {guarantee.assurance!r}")
    _check_words(predicate)
    _check_tier(predicate)
    if rule == "retrain" and (guarantee.epsilon or guarantee.delta):
        raise AssuranceUnfounded("a retrain is its own reference, so its ε and δ must be 0")
    if predicate.bound.inequalities != inequalities_of(rule):
        raise AssuranceUnfounded(
            f"rule {rule} must state exactly these inequalities: {', '.join(inequalities_of(rule)) or 'none'}"
        )
    return _describe(predicate, len(guarantee.assumptions))


def _check_words(predicate: Predicate) -> None:
    guarantee, objective = predicate.guarantee, predicate.objective
    if guarantee.reference != _REFERENCE[predicate.bound.rule]:
        raise AssuranceUnfounded(
            f"the reference {guarantee.reference!r} is not the reference of rule {predicate.bound.rule}"
        )
    if objective.loss not in _losses_of(objective.family, linearised=objective.linearisation is not None):
        raise AssuranceUnfounded(
            f"the family {printable(objective.family)!r} is not trained with the loss {objective.loss!r}"
        )
    needed = not_covered_for(represented=objective.representation is not None)
    if guarantee.not_covered != needed:
        odd = ", ".join(sorted(set(guarantee.not_covered) ^ set(needed)))
        raise AssuranceUnfounded(
            "the list of what the guarantee does not cover is not the one that belongs to the release: "
            f"{odd or 'it is in the wrong order'}"
        )


def _check_tier(predicate: Predicate) -> None:
    """Check that exactly the needed assumptions are named and that they lower the assurance as required."""
    guarantee, assurance = predicate.guarantee, predicate.guarantee.assurance
    baseline = assurance == "as-published"
    changed = "choices-after-refusal" in guarantee.assumptions
    if not baseline and changed == predicate.noise.data_independent:
        raise AssuranceUnfounded(
            "data_independent must be false if and only if the certificate names the assumption "
            "choices-after-refusal (ε, δ, Δ* or λ changed after a refusal)"
        )
    if baseline and predicate.noise.data_independent:
        raise AssuranceUnfounded("data_independent is true, but the noise of a baseline depends on the data")
    needed = assumptions_for(
        predicate.bound.rule,
        assurance,
        changed_after_refusal=changed,
        warnings=predicate.objective.warnings,
        sums_floating_point_noise="floating-point-noise" in guarantee.assumptions,
        represented=predicate.objective.representation is not None,
        linearisation=predicate.objective.linearisation,
    )
    if guarantee.assumptions != needed:
        odd = ", ".join(sorted(set(guarantee.assumptions) ^ set(needed)))
        raise AssuranceUnfounded(
            "the assumptions named are not those that the release depends on: "
            f"{odd or 'they are in the wrong order'}"
        )
    _check_lowered(predicate, changed=changed)


def _check_lowered(predicate: Predicate, *, changed: bool) -> None:
    rule, assurance = predicate.bound.rule, predicate.guarantee.assurance
    if rule not in ("B1", "retrain"):
        return
    expected = lower_assurance("proved", changed_after_refusal=changed, warnings=predicate.objective.warnings)
    if assurance != expected:
        raise AssuranceUnfounded(
            f"the certificate's warnings and assumptions make it {expected}, but it claims {assurance}"
        )


def check_mechanism(mechanism: Mechanism, rule: Rule) -> None:
    """Raise `AssuranceUnfounded` unless `rule` can bound a release by `mechanism`."""
    allowed = {"tr": ("B1", "B2"), "discarded": tuple(_REFERENCE)}.get(mechanism, (mechanism,))
    if rule not in allowed:
        raise AssuranceUnfounded(f"rule {rule} cannot bound a release by the mechanism {mechanism}")


def check_family(predicate: Predicate | PredicateV1) -> None:
    """Raise `AssuranceUnfounded` unless the family meets the condition of the rule.

    The loss of a convex family is convex in the weights. So is that of a linearised network: its outputs are
    affine in the weights by construction, and the loss is convex in the outputs.
    """
    family, rule = predicate.objective.family, predicate.bound.rule
    linearised = isinstance(predicate, Predicate) and predicate.objective.linearisation is not None
    if linearised:
        _check_linearisation(predicate)
    if rule in ("B1", "guo2020") and family not in CONVEX_FAMILIES and not (linearised and rule == "B1"):
        raise AssuranceUnfounded(
            f"rule {rule} needs a loss convex in the weights; {printable(family)!r} is not one of "
            f"{', '.join(sorted(CONVEX_FAMILIES))}, and it is not linearised"
        )
    conditional = rule == "B2" and predicate.guarantee.assurance == "conditional"
    if conditional and family not in ANALYTIC_FAMILIES:
        raise AssuranceUnfounded(
            "a conditional guarantee needs a derived Lipschitz constant of the Hessian, which is known for "
            f"{', '.join(sorted(ANALYTIC_FAMILIES))} but not for {printable(family)!r}"
        )


def _check_linearisation(predicate: Predicate | PredicateV1) -> None:
    """Raise `AssuranceUnfounded` unless the linearisation fits the family and the rule."""
    assert isinstance(predicate, Predicate)
    family, linearisation, rule = (
        predicate.objective.family,
        predicate.objective.linearisation,
        predicate.bound.rule,
    )
    assert linearisation is not None
    if family in CONVEX_FAMILIES or rule not in ("B1", "retrain"):
        raise AssuranceUnfounded(
            f"a linearised {printable(family)!r} under rule {rule} is not possible: networks are linearised, "
            "and bounded by B1 or retrained"
        )
    expected = (
        "derived" if family in ANALYTIC_FAMILIES else "modelled",
        "built-in" if family in LOSS_OF_FAMILY else "plug-in",
    )
    if (linearisation.rounding, linearisation.architecture) != expected:
        raise AssuranceUnfounded(
            f"for the family {printable(family)!r} rounding is {expected[0]} and the architecture "
            f"{expected[1]}, but the certificate states {linearisation.rounding} and "
            f"{linearisation.architecture}"
        )


def check_failure_probability(predicate: Predicate | PredicateV1) -> None:
    """Raise `AssuranceUnfounded` unless the failure probability is positive for B2 and 0 for other rules."""
    probability = predicate.bound.failure_probability
    if (predicate.bound.rule == "B2") != (probability > 0):
        raise AssuranceUnfounded(
            f"rule {predicate.bound.rule} cannot have the failure probability {probability!r}"
        )


# The rules of format version 1, frozen with the format.
_ASSURANCE_OF_RULE_V1: dict[Rule, frozenset[Assurance]] = {
    "B1": frozenset({"proved"}),
    "B2": frozenset({"conditional", "heuristic"}),
    "retrain": frozenset({"proved"}),
    "tr-paper": frozenset({"as-published"}),
    "guo2020": frozenset({"as-published"}),
    "zhang2024": frozenset({"as-published"}),
}
_INEQUALITIES_V1: dict[Rule, frozenset[Inequality]] = {
    "B1": frozenset({"distance <= target", "rounding / lambda < target"}),
    "B2": frozenset({"distance <= target", "mu0 > 0", "h < 1/2", "sum p_j <= p"}),
    "retrain": frozenset(),
    "tr-paper": frozenset({"distance <= target"}),
    "guo2020": frozenset({"distance <= target"}),
    "zhang2024": frozenset({"distance <= target"}),
}


def _check_v1(predicate: PredicateV1) -> str:
    """Check the rules of version 1 alone. The caller has made the checks common to all versions."""
    rule, assurance = predicate.bound.rule, predicate.guarantee.assurance
    if assurance not in _ASSURANCE_OF_RULE_V1[rule]:
        raise AssuranceUnfounded(f"rule {rule} does not give the assurance {assurance!r}")
    if assurance in ("proved", "conditional") and not predicate.noise.data_independent:
        raise AssuranceUnfounded(f"the assurance {assurance!r} needs noise that does not depend on the data")
    named = {assumption.name for assumption in predicate.guarantee.assumptions}
    missing = [name for name in _assumptions_v1(rule, assurance) if name not in named]
    if missing:
        raise AssuranceUnfounded(
            f"the certificate does not name assumptions it depends on: {', '.join(missing)}"
        )
    unmet = _INEQUALITIES_V1[rule] - set(predicate.bound.inequalities)
    if unmet:
        raise AssuranceUnfounded(
            f"the certificate does not state inequalities that rule {rule} needs: {', '.join(sorted(unmet))}"
        )
    return _describe(predicate, len(named))


def _assumptions_v1(rule: Rule, assurance: Assurance) -> tuple[str, ...]:
    """Return the assumptions that a certificate of version 1 must name."""
    names = ["declared-origins", "floating-point-noise"]
    if rule == "B2":
        names.append("retraining-reaches-reference")
    if assurance == "heuristic":
        names.append("sampled-hessian-lipschitz")
    if assurance == "as-published":
        names.append("published-analysis")
    return tuple(names)


def _describe(predicate: Predicate | PredicateV1, assumptions: int) -> str:
    family, count = printable(predicate.objective.family), f"{assumptions} assumption"
    linearised = isinstance(predicate, Predicate) and predicate.objective.linearisation is not None
    shown = f"{family}, linearised at its anchor" if linearised else family
    return (
        f"{predicate.guarantee.assurance}, by rule {predicate.bound.rule} for the family {shown}, "
        f"with {count if assumptions == 1 else count + 's'}"
    )

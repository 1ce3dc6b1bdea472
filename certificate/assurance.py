"""Which assurance a release may claim, and what it must say it rests on.

Used on both sides: the issuer composes the guarantee with `guarantee_for`, the verifier holds it to
`check_assurance`.
"""

from __future__ import annotations

from certificate.errors import AssuranceUnfounded
from certificate.predicate import (
    Assumption,
    Assurance,
    Estimate,
    Guarantee,
    Inequality,
    Mechanism,
    Predicate,
    Rule,
)
from certificate.records import printable

# Families whose loss is convex in the weights, so that B1 needs nothing but λ.
CONVEX_FAMILIES = frozenset({"softmax", "logistic", "ridge"})
# Networks for which the Hessian's Lipschitz constant is derived, layer by layer, and not sampled.
ANALYTIC_FAMILIES = frozenset({"mlp", "allcnn"})
PUBLISHED_METHODS: frozenset[Rule] = frozenset({"tr-paper", "guo2020", "zhang2024"})

ORIGINS = "declared-origins"
FLOATING_POINT_NOISE = "floating-point-noise"
RETRAINING_REACHES_REFERENCE = "retraining-reaches-reference"
SAMPLED_LIPSCHITZ = "sampled-hessian-lipschitz"
CURVATURE_ROUNDING = "curvature-rounding"
PUBLISHED_ANALYSIS = "published-analysis"

_BASIS = {
    ORIGINS: "the model's owner declared that features, constants, anchor, λ and the policy's ε, δ and Δ* do "
    "not depend on erasable records, nor on how an earlier attempt at this release ended",
    FLOATING_POINT_NOISE: "Gaussian noise is drawn in double precision from a cryptographic keystream, its "
    "tail cut at 13.3 standard deviations; attacks on its floating-point grid are not modelled",
    RETRAINING_REACHES_REFERENCE: "retraining from the anchor is taken to reach the stationary point "
    "certified; shown by experiment, not proved",
    SAMPLED_LIPSCHITZ: "the Hessian's Lipschitz constant was sampled; samples bound a supremum from below",
    CURVATURE_ROUNDING: "rounding in products with the Hessian is modelled to first order, with a margin of "
    "sixteen, and taken to be independent of the random start of the measurement",
    PUBLISHED_ANALYSIS: "the distance and the noise follow the method's publication, where the noise depends "
    "on the data; its claim is repeated here and not proved",
}

_REFERENCE: dict[Rule, str] = {
    "B1": "the minimiser of the objective on the retained records, released with the same noise",
    "B2": "the only stationary point of the objective on the retained records near the released one, a "
    "strict local minimiser, released with the same noise",
    "retrain": "itself: training from the anchor on the retained records alone, released with noise",
    "tr-paper": "the model retrained on the retained records, as the method's publication defines it",
    "guo2020": "the model retrained on the retained records, as the method's publication defines it",
    "zhang2024": "the model retrained on the retained records, as the method's publication defines it",
}

NOT_COVERED = (
    "earlier versions of the model that someone kept, alone or compared with this one",
    "which mechanism ran, when, and for how many requests and records",
    "copies of the erased records outside this model's training data",
)

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
    names = [ORIGINS, FLOATING_POINT_NOISE]
    if rule == "B2":
        names.append(RETRAINING_REACHES_REFERENCE)
    if assurance == "heuristic":
        names.append(SAMPLED_LIPSCHITZ)
    if assurance == "as-published":
        names.append(PUBLISHED_ANALYSIS)
    return tuple(names)


def stated_assumptions(rule: Rule, assurance: Assurance) -> tuple[str, ...]:
    """What an issuer names: all that a verifier asks for, and what early certificates did not know to say."""
    besides = (CURVATURE_ROUNDING,) if rule == "B2" else ()
    return (*required_assumptions(rule, assurance), *besides)


def inequalities_of(rule: Rule) -> tuple[Inequality, ...]:
    """What a release under `rule` states, in the order a certificate lists it."""
    return tuple(sorted(_INEQUALITIES[rule]))


def guarantee_for(*, rule: Rule, assurance: Assurance, epsilon: float, delta: float) -> Guarantee:
    """The guarantee stated for a release by `rule`, with its assumptions and limits in words."""
    heuristic = assurance == "heuristic"
    return Guarantee(
        epsilon=None if heuristic else epsilon,
        delta=None if heuristic else delta,
        assurance=assurance,
        reference=_REFERENCE[rule],
        assumptions=tuple(
            Assumption(name=name, basis=_BASIS[name]) for name in stated_assumptions(rule, assurance)
        ),
        not_covered=NOT_COVERED,
        estimate=Estimate(epsilon=epsilon, delta=delta) if heuristic else None,
    )


def check_assurance(predicate: Predicate) -> str:
    """Checklist line 5; the detail to show, or `AssuranceUnfounded`."""
    rule, assurance = predicate.bound.rule, predicate.guarantee.assurance
    _check_mechanism(predicate.mechanism, rule)
    if assurance not in _ASSURANCE_OF_RULE[rule]:
        raise AssuranceUnfounded(f"rule {rule} does not give the assurance {assurance!r}")
    _check_family(predicate)
    if assurance in ("proved", "conditional") and not predicate.noise.data_independent:
        raise AssuranceUnfounded(f"{assurance} needs noise that does not depend on the data")
    _check_failure_probability(predicate)
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


def _check_mechanism(mechanism: Mechanism, rule: Rule) -> None:
    allowed = {"tr": ("B1", "B2"), "discarded": tuple(_REFERENCE)}.get(mechanism, (mechanism,))
    if rule not in allowed:
        raise AssuranceUnfounded(f"mechanism {mechanism} is not bounded by rule {rule}")


def _check_family(predicate: Predicate) -> None:
    family = predicate.objective.family
    if predicate.bound.rule == "B1" and family not in CONVEX_FAMILIES:
        raise AssuranceUnfounded(
            f"rule B1 needs a loss convex in the weights; {printable(family)!r} is not one of "
            f"{', '.join(sorted(CONVEX_FAMILIES))}"
        )
    if predicate.guarantee.assurance == "conditional" and family not in ANALYTIC_FAMILIES:
        raise AssuranceUnfounded(
            f"a conditional guarantee needs a derived Hessian-Lipschitz constant; of {printable(family)!r} "
            f"none is known, of {', '.join(sorted(ANALYTIC_FAMILIES))} there is"
        )


def _check_failure_probability(predicate: Predicate) -> None:
    """B2 estimates curvature and can fail; nothing else does, so a p elsewhere is a mistake."""
    probability = predicate.bound.failure_probability
    if (predicate.bound.rule == "B2") != (probability > 0):
        raise AssuranceUnfounded(
            f"rule {predicate.bound.rule} cannot have failure probability {probability!r}"
        )

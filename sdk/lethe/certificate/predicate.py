"""The predicate of a certificate, version 2: what is public about one release.

It states inequalities against the policy. Exact norms, distances, class counts and timings are un-noised
functions of the data and live in the evidence record. Every word is a key of `certificate.vocabulary`.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import AwareDatetime, Field, model_validator

from certificate.merkle import EMPTY_ROOT
from certificate.records import (
    Count,
    Declaration,
    DeviceName,
    FamilyName,
    ModelName,
    NonNegative,
    Positive,
    Probability,
    Record,
    RuntimeFlag,
    Sha256,
    SoftwareVersion,
    Uuid7,
    at_most,
)
from certificate.vocabulary import (
    ASSUMPTIONS,
    LIMITS,
    REFERENCES,
    AssumptionName,
    Limit,
    Loss,
    Reference,
    RegistrationWarning,
)

Mechanism = Literal["tr", "retrain", "tr-paper", "guo2020", "zhang2024", "discarded"]
Assurance = Literal["proved", "conditional", "heuristic", "as-published"]
Rule = Literal["B1", "B2", "retrain", "tr-paper", "guo2020", "zhang2024"]
Inequality = Literal["distance <= target", "rounding / lambda < target", "mu0 > 0", "h < 1/2", "sum p_j <= p"]

# With fewer people, how many records they had says something about one of them.
SMALLEST_DESCRIBED_SET = 20


class Parent(Record):
    """The version the release started from.

    Later versions are named by the digest of their weights. Version 0 has no noise, so its digest would
    confirm a guess of the data: it is named by a salted commitment, which the evidence opens.
    """

    version: Count
    weights_sha256: Sha256 | None = None
    commitment: Sha256 | None = None

    @model_validator(mode="after")
    def _version_0_is_committed_to(self) -> Self:
        first = self.version == 0
        if first != (self.commitment is not None) or first == (self.weights_sha256 is not None):
            raise ValueError("version 0 is named by a commitment, every later version by its digest")
        return self


class Origins(Record):
    """Where what the objective includes comes from, as the model's owner declared it."""

    features: Declaration
    constants: Declaration
    anchor: Declaration


class Objective(Record):
    """f(w) = mean loss + (regularisation/2)·‖w - anchor‖²; `anchor_sha256` is null for the anchor 0.

    `warnings` are what registration noticed and nobody has resolved.
    """

    family: FamilyName
    loss: Loss
    regularisation: Positive
    anchor_sha256: Sha256 | None
    origins: Origins
    warnings: Annotated[tuple[RegistrationWarning, ...], at_most(16)] = ()
    dimension: Annotated[int, Field(ge=1, lt=2**53)]
    retained_data_commitment: Sha256

    @model_validator(mode="after")
    def _warnings_are_named_once(self) -> Self:
        if len(set(self.warnings)) != len(self.warnings):
            raise ValueError("a warning is named twice")
        return self


class DeletionSet(Record):
    """How many were erased, and a commitment to who: `root` is the Merkle root over `commitments` leaves.

    One leaf stands for one person in one request, so a person who asks twice has two. `records` is null for
    fewer than twenty people. Records that were added, and nobody erased, make an empty set: all counts are 0
    and the root is that of the empty tree.
    """

    requests: Count
    people: Count
    commitments: Count
    records: Count | None
    root: Sha256

    @model_validator(mode="after")
    def _counts_add_up(self) -> Self:
        if not self.people <= self.commitments <= self.people * self.requests:
            raise ValueError(
                "each person has a commitment for each request that names them, and no other has"
            )
        if self.people == 0 and self.requests != 0:
            raise ValueError("a request erased nobody")
        if (self.commitments == 0) != (self.root == EMPTY_ROOT.hex()):
            raise ValueError("the root is that of the empty tree exactly when there is no commitment")
        if (self.people < SMALLEST_DESCRIBED_SET) != (self.records is None):
            raise ValueError("records are counted for twenty people or more, and not for fewer")
        if self.records is not None and self.records < self.people:
            raise ValueError("there are more people than records")
        return self


class Estimate(Record):
    """An (ε, δ) that would hold if the sampled constants were true bounds. Not a guarantee."""

    epsilon: Positive
    delta: Annotated[float, Field(gt=0, lt=1)]


def check_headline(
    assurance: Assurance, epsilon: float | None, delta: float | None, estimate: Estimate | None
) -> None:
    """Raise unless a heuristic certificate carries an estimate and any other carries (ε, δ)."""
    if assurance == "heuristic":
        if epsilon is not None or delta is not None or estimate is None:
            raise ValueError("a heuristic certificate carries an estimate and no (epsilon, delta)")
    elif epsilon is None or delta is None or estimate is not None:
        raise ValueError(f"a {assurance} certificate carries (epsilon, delta) and no estimate")


class Guarantee(Record):
    """(ε, δ)-indistinguishability from `reference`, in both directions; none of it when heuristic."""

    epsilon: NonNegative | None
    delta: Probability | None
    assurance: Assurance
    reference: Reference
    assumptions: Annotated[tuple[AssumptionName, ...], at_most(64)]
    not_covered: Annotated[tuple[Limit, ...], at_most(64)]
    estimate: Estimate | None = None

    @model_validator(mode="after")
    def _headline_unless_heuristic(self) -> Self:
        check_headline(self.assurance, self.epsilon, self.delta, self.estimate)
        return self

    @property
    def reference_text(self) -> str:
        """The reference as a sentence."""
        return REFERENCES[self.reference]

    @property
    def assumption_texts(self) -> tuple[tuple[str, str], ...]:
        """Each assumption's name with its sentence."""
        return tuple((name, ASSUMPTIONS[name]) for name in self.assumptions)

    @property
    def limit_texts(self) -> tuple[str, ...]:
        """What is not covered, as sentences."""
        return tuple(LIMITS[name] for name in self.not_covered)


class Bound(Record):
    """Δ ≤ `distance_target` (Δ*), by `rule`, but for probability `failure_probability` (p, a part of δ)."""

    distance_target: NonNegative
    rule: Rule
    failure_probability: Probability
    inequalities: Annotated[tuple[Inequality, ...], at_most(16)]


class Noise(Record):
    """Gaussian noise of standard deviation `sigma`, released on the multiples of `grid_step`.

    `residual` bounds how far the released distribution is, in total variation, from rounding real Gaussian
    noise; it is charged to δ. `data_independent` is false when the noise follows from the run, or when ε, δ,
    Δ* or λ was changed after an attempt on the same records was refused.
    """

    sigma: Positive
    grid_step: Positive
    residual: Probability
    calibration: Literal["analytic", "classical"]
    data_independent: bool


class Lifetime(Record):
    """The running sum since the last retrain, this release included; shift s = Δ*/σ, not the achieved Δ.

    `assurance` is the weakest among the summed releases; `epsilon_total` is null when that is heuristic.
    """

    release_shift: NonNegative
    running_shift: NonNegative
    running_failure_probability: Probability
    running_residual: Probability
    epsilon_total: NonNegative | None
    delta: Annotated[float, Field(gt=0, lt=1)]
    cap: Positive | None
    assurance: Assurance
    index: Count
    previous_certificate_digest: Sha256 | None

    @model_validator(mode="after")
    def _first_has_no_predecessor(self) -> Self:
        if (self.index == 0) != (self.previous_certificate_digest is None):
            raise ValueError("only the first certificate of a model has no predecessor")
        return self


class EvidenceCommitment(Record):
    """Commits to the restricted evidence record."""

    scheme: Literal["urn:lethe:evidence:v1"] = "urn:lethe:evidence:v1"
    commitment: Sha256


class Runtime(Record):
    """What ran; `flags` are the settings that make it deterministic, as the runtime spells them."""

    torch: SoftwareVersion
    lethe: SoftwareVersion
    device: DeviceName
    world_size: Annotated[int, Field(ge=1, lt=2**31)]
    deterministic: bool
    flags: Annotated[tuple[RuntimeFlag, ...], at_most(16)] = ()


class Predicate(Record):
    """`model_id` says whose model it is: names repeat among the tenants of one log, ids do not."""

    format_version: ClassVar[int] = 2

    certificate_id: Uuid7
    model: ModelName
    model_id: Uuid7
    version: Annotated[int, Field(ge=1, lt=2**53)]
    parent: Parent
    mechanism: Mechanism
    objective: Objective
    deletion_set: DeletionSet
    guarantee: Guarantee
    bound: Bound
    noise: Noise
    lifetime: Lifetime
    evidence: EvidenceCommitment
    runtime: Runtime
    issued_at: AwareDatetime

    @model_validator(mode="after")
    def _retraining_is_its_own_reference(self) -> Self:
        shifted = self.bound.distance_target or self.lifetime.release_shift or self.bound.failure_probability
        check_retrain(self.mechanism, self.bound.rule, shifted=bool(shifted))
        return self

    @model_validator(mode="after")
    def _follows_its_parent(self) -> Self:
        if self.version != self.parent.version + 1:
            raise ValueError("a version is one more than its parent's")
        return self


def check_retrain(mechanism: Mechanism, rule: Rule, *, shifted: bool) -> None:
    """Raise if a retrain is bounded by a rule of another mechanism, or claims a distance."""
    if mechanism == "retrain" and rule != "retrain":
        raise ValueError("a retrain is bounded by no rule but its own")
    if rule == "retrain" and shifted:
        raise ValueError("a retrain has distance 0, shift 0 and no failure probability")

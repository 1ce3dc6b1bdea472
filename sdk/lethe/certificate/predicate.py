"""The predicate of a certificate, version 2: everything that is public about one release.

It states inequalities against the policy. Exact norms, distances, class counts and timings depend on the data
without noise, so they are in the evidence record instead. Every word is a key of
`lethe.certificate.vocabulary`.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import AwareDatetime, Field, model_validator

from lethe.certificate.merkle import EMPTY_ROOT
from lethe.certificate.records import (
    Count,
    Declaration,
    DeviceName,
    FamilyName,
    LayerName,
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
from lethe.certificate.representation import CertifiedRepresentation
from lethe.certificate.vocabulary import (
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

# With fewer people, the number of their records would reveal something about each of them.
SMALLEST_DESCRIBED_SET = 20


class Parent(Record):
    """The version that the release started from.

    Version 0 has no noise, so its digest could confirm a guess of the data. It is named by a salted
    commitment, which the evidence opens. Every later version is named by the digest of its weights.
    """

    version: Count
    weights_sha256: Sha256 | None = None
    commitment: Sha256 | None = None

    @model_validator(mode="after")
    def _version_0_is_committed_to(self) -> Self:
        first = self.version == 0
        if first != (self.commitment is not None) or first == (self.weights_sha256 is not None):
            raise ValueError("version 0 must be named by a commitment, every later version by its digest")
        return self


class Origins(Record):
    """The origins of the features, the constants and the anchor, as the model's owner declared them."""

    features: Declaration
    constants: Declaration
    anchor: Declaration


class Linearisation(Record):
    """States that the network N is replaced by N(x; a) + ∂N(x; a)·(w - a), where a is the anchor.

    This is affine in the weights w, which is what rule B1 needs. `layers` are the parts of the network whose
    parameters were trained, and all if there are none. `rounding` says whether the bound on rounding errors
    was derived or modelled, and `architecture` whether the network is built in or comes from a plug-in.
    """

    layers: Annotated[tuple[LayerName, ...], at_most(64)]
    rounding: Literal["derived", "modelled"]
    architecture: Literal["built-in", "plug-in"]


class Objective(Record):
    """The training objective f(w) = mean loss + (λ/2)·‖w - anchor‖², where λ is `regularisation`.

    `anchor_sha256` is null if the anchor is 0. `warnings` are unresolved warnings from registration.
    `representation` is the public function that turned raw rows into features. `linearisation` is stated for
    a network that was linearised at its anchor. Without them these fields are left out of the JSON, so that
    certificates of other models keep their bytes.
    """

    family: FamilyName
    loss: Loss
    regularisation: Positive
    anchor_sha256: Sha256 | None
    origins: Origins
    warnings: Annotated[tuple[RegistrationWarning, ...], at_most(16)] = ()
    dimension: Annotated[int, Field(ge=1, lt=2**53)]
    retained_data_commitment: Sha256
    representation: CertifiedRepresentation | None = Field(None, exclude_if=lambda value: value is None)
    linearisation: Linearisation | None = Field(None, exclude_if=lambda value: value is None)

    @model_validator(mode="after")
    def _linearised_at_an_anchor(self) -> Self:
        if self.linearisation is not None and self.anchor_sha256 is None:
            raise ValueError("a network is linearised at an anchor, but the objective names none")
        return self

    @model_validator(mode="after")
    def _warnings_are_named_once(self) -> Self:
        if len(set(self.warnings)) != len(self.warnings):
            raise ValueError("the same warning is named twice")
        return self


class DeletionSet(Record):
    """The number of people erased, and a commitment to who they are.

    `root` is the Merkle root over `commitments` leaves. Each leaf stands for one person in one request, so a
    person who asks twice has two. `records` is null for fewer than twenty people. A release that only added
    records has an empty set: all counts are 0 and the root is that of the empty tree.
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
                "each person must have one commitment for each request that names them, and nobody else may"
            )
        if self.people == 0 and self.requests != 0:
            raise ValueError("there are requests, but nobody was erased")
        if (self.commitments == 0) != (self.root == EMPTY_ROOT.hex()):
            raise ValueError(
                "the root must be that of the empty tree if and only if there are no commitments"
            )
        if (self.people < SMALLEST_DESCRIBED_SET) != (self.records is None):
            raise ValueError(
                "the number of records must be stated for twenty people or more, and for no fewer"
            )
        if self.records is not None and self.records < self.people:
            raise ValueError("there are more people than records")
        return self


class Estimate(Record):
    """The (ε, δ) that would hold if the sampled constants were true bounds. It is not a guarantee."""

    epsilon: Positive
    delta: Annotated[float, Field(gt=0, lt=1)]


def check_headline(
    assurance: Assurance, epsilon: float | None, delta: float | None, estimate: Estimate | None
) -> None:
    """Raise `ValueError` unless a heuristic certificate carries an estimate, or any other carries (ε, δ)."""
    if assurance == "heuristic":
        if epsilon is not None or delta is not None or estimate is None:
            raise ValueError("a heuristic certificate carries an estimate and no (epsilon, delta)")
    elif epsilon is None or delta is None or estimate is not None:
        raise ValueError(f"a {assurance} certificate carries (epsilon, delta) and no estimate")


class Guarantee(Record):
    """(ε, δ)-indistinguishability of the release from `reference`, in both directions.

    A heuristic certificate has no ε and δ here, only an `estimate`.
    """

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
        """The reference in words."""
        return REFERENCES[self.reference]

    @property
    def assumption_texts(self) -> tuple[tuple[str, str], ...]:
        """The name and the sentence of each assumption."""
        return tuple((name, ASSUMPTIONS[name]) for name in self.assumptions)

    @property
    def limit_texts(self) -> tuple[str, ...]:
        """Everything that the guarantee does not cover, as sentences."""
        return tuple(LIMITS[name] for name in self.not_covered)


class Bound(Record):
    """The bound Δ ≤ `distance_target` (Δ*), established by `rule`.

    It may fail with probability `failure_probability` (p), which is part of δ.
    """

    distance_target: NonNegative
    rule: Rule
    failure_probability: Probability
    inequalities: Annotated[tuple[Inequality, ...], at_most(16)]


class Noise(Record):
    """Gaussian noise of standard deviation `sigma`, released on the multiples of `grid_step`.

    `residual` bounds the total variation distance between the released distribution and rounded exact
    Gaussian noise. It is charged to δ. `data_independent` is false if the noise depends on the run, or if ε,
    δ, Δ* or λ was changed after an attempt on the same records was refused.
    """

    sigma: Positive
    grid_step: Positive
    residual: Probability
    calibration: Literal["analytic", "classical"]
    data_independent: bool


class Lifetime(Record):
    """The sum over all releases since the last retrain, including this one.

    Shifts are s = Δ*/σ, computed from the target Δ* and not from the achieved distance. `assurance` is the
    weakest among the summed releases. `epsilon_total` is null if that is heuristic.
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
            raise ValueError("the first certificate of a model, and no other, must have no predecessor")
        return self


class EvidenceCommitment(Record):
    """The commitment to the restricted evidence record."""

    scheme: Literal["urn:lethe:evidence:v1"] = "urn:lethe:evidence:v1"
    commitment: Sha256


class Runtime(Record):
    """The software and device that ran. `flags` are the settings that make it deterministic."""

    torch: SoftwareVersion
    lethe: SoftwareVersion
    device: DeviceName
    world_size: Annotated[int, Field(ge=1, lt=2**31)]
    deterministic: bool
    flags: Annotated[tuple[RuntimeFlag, ...], at_most(16)] = ()


class Predicate(Record):
    """Everything public about one release.

    Two tenants of one log may use the same model name, so `model_id` identifies the model.
    """

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
            raise ValueError("a version must be its parent's version plus one")
        return self


def check_retrain(mechanism: Mechanism, rule: Rule, *, shifted: bool) -> None:
    """Raise `ValueError` if a retrain uses another mechanism's rule, or claims a distance."""
    if mechanism == "retrain" and rule != "retrain":
        raise ValueError("a retrain must use the rule retrain")
    if rule == "retrain" and shifted:
        raise ValueError("a retrain must have distance 0, shift 0 and failure probability 0")

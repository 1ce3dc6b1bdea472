"""The predicate of a certificate, version 1: what is public about one release.

Inequalities against the policy only. Exact norms, distances, Ritz values and timings are un-noised functions
of the data and live in the evidence record.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import AwareDatetime, Field, model_validator

from certificate.records import (
    Count,
    NonNegative,
    Positive,
    Probability,
    Record,
    Sha256,
    Text,
    Uuid7,
    at_most,
)

Mechanism = Literal["tr", "retrain", "tr-paper", "guo2020", "zhang2024", "discarded"]
Assurance = Literal["proved", "conditional", "heuristic", "as-published"]
Rule = Literal["B1", "B2", "retrain", "tr-paper", "guo2020", "zhang2024"]
Inequality = Literal["distance <= target", "rounding / lambda < target", "mu0 > 0", "h < 1/2", "sum p_j <= p"]

# Fewer people, fewer records or a smaller cell, and a histogram is a person's label.
SMALLEST_DESCRIBED_SET = 20
SMALLEST_DESCRIBED_CELL = 5


def describable(subjects: int, records: int, histogram: Mapping[str, int]) -> bool:
    """Whether the classes of an erased set may be published: many people, many records, no small cell.

    >>> describable(20, 40, {"0": 35, "1": 5, "2": 0})
    True
    >>> describable(1, 40, {"0": 40}), describable(20, 40, {"0": 36, "1": 4})
    (False, False)
    """
    cells = [count for count in histogram.values() if count != 0]
    enough = subjects >= SMALLEST_DESCRIBED_SET and records >= SMALLEST_DESCRIBED_SET
    return enough and bool(cells) and min(cells) >= SMALLEST_DESCRIBED_CELL


class Parent(Record):
    """The version the release started from, and its checkpoint."""

    version: Count
    checkpoint_sha256: Sha256


class Origins(Record):
    """Where what the objective includes comes from, as the model's owner declared it."""

    features: Text
    constants: Text
    anchor: Text


class Objective(Record):
    """f(w) = mean loss + (regularisation/2)·‖w - anchor‖²; `anchor_sha256` is null for the anchor 0."""

    family: Text
    loss: Text
    regularisation: Positive
    anchor_sha256: Sha256 | None
    origins: Origins
    dimension: Annotated[int, Field(ge=1, lt=2**53)]
    retained_data_commitment: Sha256


class DeletionSet(Record):
    """The erased records as numbers and a commitment; described only where `describable`.

    `root` is the Merkle root of the salted commitments, one leaf for each of the `subjects`. Divergences have
    three significant digits: with more, the counts they come from could be solved for.
    """

    requests: Count
    subjects: Count
    records: Count
    root: Sha256
    class_histogram: Annotated[dict[Text, Count], Field(max_length=100_000)] | None = None
    kl_retained_original: NonNegative | None = None
    kl_original_retained: NonNegative | None = None

    @model_validator(mode="after")
    def _described_only_when_large(self) -> Self:
        divergences = [kl for kl in (self.kl_retained_original, self.kl_original_retained) if kl is not None]
        if self.class_histogram is None:
            if divergences:
                raise ValueError("a divergence is stated together with the class histogram or not at all")
            return self
        if not describable(self.subjects, self.records, self.class_histogram):
            raise ValueError(
                f"a set of fewer than {SMALLEST_DESCRIBED_SET} subjects or records, or with a class of fewer "
                f"than {SMALLEST_DESCRIBED_CELL}, must not be described"
            )
        if sum(self.class_histogram.values()) != self.records:
            raise ValueError("the class histogram does not add up to the number of records")
        if any(kl != float(f"{kl:.2e}") for kl in divergences):
            raise ValueError("a divergence has more than three significant digits")
        return self


class Assumption(Record):
    """What the guarantee rests on and the certificate does not prove; `basis` says why it is believed."""

    name: Text
    basis: Text


class Estimate(Record):
    """An (ε, δ) that would hold if the sampled constants were true bounds. Not a guarantee."""

    epsilon: Positive
    delta: Annotated[float, Field(gt=0, lt=1)]


class Guarantee(Record):
    """(ε, δ)-indistinguishability from `reference`, in both directions; none of it when heuristic."""

    epsilon: NonNegative | None
    delta: Probability | None
    assurance: Assurance
    reference: Text
    assumptions: Annotated[tuple[Assumption, ...], at_most(64)]
    not_covered: Annotated[tuple[Text, ...], at_most(64)]
    estimate: Estimate | None = None

    @model_validator(mode="after")
    def _headline_unless_heuristic(self) -> Self:
        has_headline = self.epsilon is not None and self.delta is not None
        if self.assurance == "heuristic":
            if self.epsilon is not None or self.delta is not None or self.estimate is None:
                raise ValueError("a heuristic certificate carries an estimate and no (epsilon, delta)")
        elif not has_headline or self.estimate is not None:
            raise ValueError(f"a {self.assurance} certificate carries (epsilon, delta) and no estimate")
        return self


class Bound(Record):
    """Δ ≤ `distance_target` (Δ*), by `rule`, but for probability `failure_probability` (p, a part of δ)."""

    distance_target: NonNegative
    rule: Rule
    failure_probability: Probability
    inequalities: Annotated[tuple[Inequality, ...], at_most(16)]


class Noise(Record):
    sigma: Positive
    calibration: Literal["analytic", "classical"]
    data_independent: bool


class Lifetime(Record):
    """The running sum since the last retrain, this release included; shift s = Δ*/σ, not the achieved Δ.

    `assurance` is the weakest among the summed releases; `epsilon_total` is null when that is heuristic.
    """

    release_shift: NonNegative
    running_shift: NonNegative
    running_failure_probability: Probability
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

    torch: Text
    lethe: Text
    device: Text
    world_size: Annotated[int, Field(ge=1, lt=2**31)]
    deterministic: bool
    flags: Annotated[tuple[Text, ...], at_most(64)] = ()


class Predicate(Record):
    """`model_id` says whose model it is: names repeat among the tenants of one log, ids do not."""

    certificate_id: Uuid7
    model: Text
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
        if self.mechanism == "retrain" and self.bound.rule != "retrain":
            raise ValueError("a retrain is bounded by no rule but its own")
        shifted = self.bound.distance_target or self.lifetime.release_shift or self.bound.failure_probability
        if self.bound.rule == "retrain" and shifted:
            raise ValueError("a retrain has distance 0, shift 0 and no failure probability")
        return self

    @model_validator(mode="after")
    def _newer_than_parent(self) -> Self:
        if self.version <= self.parent.version:
            raise ValueError("a version is newer than its parent")
        return self

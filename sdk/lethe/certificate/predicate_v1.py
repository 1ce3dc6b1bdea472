"""The predicate of a certificate, version 1. This format is frozen and no longer issued.

Its certificates still verify. Their noise was drawn in floating point, which a known attack can exploit, and
they contain free text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AwareDatetime, Field, model_validator

from lethe.certificate.predicate import (
    SMALLEST_DESCRIBED_SET,
    Assurance,
    Bound,
    Estimate,
    EvidenceCommitment,
    Mechanism,
    check_headline,
    check_retrain,
)
from lethe.certificate.records import (
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
from lethe.certificate.vocabulary import RegistrationWarning

# With a smaller class count, a histogram would reveal a person's label.
SMALLEST_DESCRIBED_CELL = 5


def describable(subjects: int, records: int, histogram: Mapping[str, int]) -> bool:
    """Return whether the class histogram of an erased set may be published.

    It needs enough people, enough records and no small class.

    >>> describable(20, 40, {"0": 35, "1": 5, "2": 0})
    True
    >>> describable(1, 40, {"0": 40}), describable(20, 40, {"0": 36, "1": 4})
    (False, False)
    """
    cells = [count for count in histogram.values() if count != 0]
    enough = subjects >= SMALLEST_DESCRIBED_SET and records >= SMALLEST_DESCRIBED_SET
    return enough and bool(cells) and min(cells) >= SMALLEST_DESCRIBED_CELL


class ParentV1(Record):
    """The version that the release started from, and the digest of its weights."""

    version: Count
    checkpoint_sha256: Sha256

    @property
    def weights_sha256(self) -> str:
        """The digest of the weights, under its name in format 2."""
        return self.checkpoint_sha256


class OriginsV1(Record):
    """The origins of the features, the constants and the anchor, as the model's owner declared them."""

    features: Text
    constants: Text
    anchor: Text


class ObjectiveV1(Record):
    """The training objective f(w) = mean loss + (λ/2)·‖w - anchor‖², where λ is `regularisation`.

    `anchor_sha256` is null if the anchor is 0.
    """

    family: Text
    loss: Text
    regularisation: Positive
    anchor_sha256: Sha256 | None
    origins: OriginsV1
    dimension: Annotated[int, Field(ge=1, lt=2**53)]
    retained_data_commitment: Sha256

    @property
    def warnings(self) -> tuple[RegistrationWarning, ...]:
        """Always empty: version 1 did not record warnings."""
        return ()


class DeletionSetV1(Record):
    """The numbers of people and records erased, and a commitment to who they are.

    `root` is the Merkle root of the salted commitments, with one leaf for each of the `subjects`. The class
    histogram is stated only for large sets. Divergences have three significant digits, because with more the
    counts behind them could be computed.
    """

    requests: Count
    subjects: Count
    records: Count
    root: Sha256
    class_histogram: Annotated[dict[Text, Count], Field(max_length=100_000)] | None = None
    kl_retained_original: NonNegative | None = None
    kl_original_retained: NonNegative | None = None

    @property
    def people(self) -> int:
        """The number of subjects. Version 1 counted each person once per request."""
        return self.subjects

    @property
    def commitments(self) -> int:
        """The number of leaves under `root`."""
        return self.subjects

    @model_validator(mode="after")
    def _described_only_when_large(self) -> Self:
        divergences = [kl for kl in (self.kl_retained_original, self.kl_original_retained) if kl is not None]
        if self.class_histogram is None:
            if divergences:
                raise ValueError(
                    "a divergence must be stated together with the class histogram or not at all"
                )
            return self
        if not describable(self.subjects, self.records, self.class_histogram):
            raise ValueError(
                f"a set of fewer than {SMALLEST_DESCRIBED_SET} subjects or records, or with a class of fewer "
                f"than {SMALLEST_DESCRIBED_CELL} records, must not be described"
            )
        if sum(self.class_histogram.values()) != self.records:
            raise ValueError("the class histogram does not add up to the number of records")
        if any(kl != float(f"{kl:.2e}") for kl in divergences):
            raise ValueError("a divergence has more than three significant digits")
        return self


class Assumption(Record):
    """An assumption that the certificate does not prove. `basis` says why it is believed."""

    name: Text
    basis: Text


class GuaranteeV1(Record):
    """(ε, δ)-indistinguishability of the release from `reference`, in both directions.

    A heuristic certificate has no ε and δ here, only an `estimate`.
    """

    epsilon: NonNegative | None
    delta: Probability | None
    assurance: Assurance
    reference: Text
    assumptions: Annotated[tuple[Assumption, ...], at_most(64)]
    not_covered: Annotated[tuple[Text, ...], at_most(64)]
    estimate: Estimate | None = None

    @model_validator(mode="after")
    def _headline_unless_heuristic(self) -> Self:
        check_headline(self.assurance, self.epsilon, self.delta, self.estimate)
        return self

    @property
    def reference_text(self) -> str:
        """The reference in the certificate's own words."""
        return self.reference

    @property
    def assumption_texts(self) -> tuple[tuple[str, str], ...]:
        """The name of each assumption, and its basis in the certificate's own words."""
        return tuple((entry.name, entry.basis) for entry in self.assumptions)

    @property
    def limit_texts(self) -> tuple[str, ...]:
        """Everything that the guarantee does not cover, in the certificate's own words."""
        return self.not_covered


class NoiseV1(Record):
    """Gaussian noise that was drawn and added in double precision, without a public grid."""

    sigma: Positive
    calibration: Literal["analytic", "classical"]
    data_independent: bool

    @property
    def grid_step(self) -> None:
        """Always None: version 1 had no grid."""

    @property
    def residual(self) -> float:
        """Always 0: version 1 stated its imperfect noise as an assumption instead of charging it to δ."""
        return 0.0


class LifetimeV1(Record):
    """The sum over all releases since the last retrain, including this one.

    Shifts are s = Δ*/σ, computed from the target Δ* and not from the achieved distance. `assurance` is the
    weakest among the summed releases. `epsilon_total` is null if that is heuristic.
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

    @property
    def running_residual(self) -> float:
        """Always 0: version 1 stated its imperfect noise as an assumption instead of charging it to δ."""
        return 0.0

    @model_validator(mode="after")
    def _first_has_no_predecessor(self) -> Self:
        if (self.index == 0) != (self.previous_certificate_digest is None):
            raise ValueError("the first certificate of a model, and no other, must have no predecessor")
        return self


class RuntimeV1(Record):
    """The software and device that ran. `flags` are the settings that make it deterministic."""

    torch: Text
    lethe: Text
    device: Text
    world_size: Annotated[int, Field(ge=1, lt=2**31)]
    deterministic: bool
    flags: Annotated[tuple[Text, ...], at_most(64)] = ()


class PredicateV1(Record):
    """Everything public about one release, in format 1.

    Two tenants of one log may use the same model name, so `model_id` identifies the model.
    """

    format_version: ClassVar[int] = 1

    certificate_id: Uuid7
    model: Text
    model_id: Uuid7
    version: Annotated[int, Field(ge=1, lt=2**53)]
    parent: ParentV1
    mechanism: Mechanism
    objective: ObjectiveV1
    deletion_set: DeletionSetV1
    guarantee: GuaranteeV1
    bound: Bound
    noise: NoiseV1
    lifetime: LifetimeV1
    evidence: EvidenceCommitment
    runtime: RuntimeV1
    issued_at: AwareDatetime

    @model_validator(mode="after")
    def _retraining_is_its_own_reference(self) -> Self:
        shifted = self.bound.distance_target or self.lifetime.release_shift or self.bound.failure_probability
        check_retrain(self.mechanism, self.bound.rule, shifted=bool(shifted))
        return self

    @model_validator(mode="after")
    def _newer_than_parent(self) -> Self:
        if self.version <= self.parent.version:
            raise ValueError("a version must be newer than its parent")
        return self

"""What a model is and what its owner wants: the JSON kept in `models.manifest`."""

from importlib.metadata import entry_points
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from certificate import privacy
from certificate.records import Text

BUILT_IN_FAMILIES = ("softmax", "logistic", "ridge")
FAMILY_GROUP = "lethe.families"
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class QualityGate(BaseModel):
    """How much worse the published model may be on the holdout before someone is asked."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_f1_drop: float | None = Field(
        None, ge=0, le=100, description="In points of micro-F1; classifiers only."
    )
    max_loss_rise: float | None = Field(
        None, ge=0, allow_inf_nan=False, description="Of the mean holdout loss."
    )


class Policy(BaseModel):
    """Fixed before the data is looked at: σ follows from ε, δ and Δ* alone."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    epsilon: Positive = Field(1.0, le=privacy.LARGEST_EPSILON, description="ε of one release.")
    delta: Positive = Field(1e-5, ge=privacy.SMALLEST_DELTA, le=1e-2, description="δ of one release.")
    target_distance: Positive = Field(
        1e-2, le=1e6, description="Δ*: the certified distance to the retrained model that must be reached."
    )
    lifetime_epsilon: Positive = Field(
        8.0, le=1000, description="Cap on the ε of all releases since a retraining."
    )
    batch_subjects: int = Field(100, ge=1, le=1_000_000, description="A batch is sealed at so many subjects.")
    batch_age_seconds: float = Field(
        3600.0, ge=0, le=30 * 86400, description="A batch is sealed when its oldest request is so old."
    )
    method: Literal["tr", "retrain"] = Field(
        "tr", description="`tr`: unlearn from the published version. `retrain`: from the anchor, every time."
    )
    fallback: Literal["retrain", "fail"] = Field(
        "retrain", description="What happens when Δ* cannot be certified or the lifetime cap would be passed."
    )
    quality_gate: QualityGate | None = Field(
        None, description="Past it a batch is held with its draw, for approval or to be discarded."
    )
    max_kl_alert: Positive | None = Field(
        None,
        le=1000,
        description="A batch whose erasure shifts the classes by more, KL(R‖D), raises an alert.",
    )
    suppression_list: bool = Field(
        False,
        description="Keep a keyed hash of everyone who asked to be erased, and filter their rows from "
        "data that is appended later. Without it nothing about them is kept.",
    )
    membership_test: bool = Field(
        False,
        description="Before the erased rows are purged, test whether the published model still tells them "
        "from holdout rows. It costs a retraining of each batch and needs a holdout.",
    )
    receipt_days: int = Field(
        90,
        ge=1,
        le=3653,
        description="Receipts can be fetched for so long after completion; then their salts are destroyed.",
    )
    time_limit_seconds: Positive = Field(3600.0, le=7 * 86400, description="Longest solve of one attempt.")

    @model_validator(mode="after")
    def _one_release_fits(self) -> Self:
        if self.lifetime_epsilon < self.epsilon:
            raise ValueError("lifetime_epsilon is smaller than epsilon: not even one release would fit")
        return self

    @model_validator(mode="after")
    def _noise_can_be_computed(self) -> Self:
        try:
            sigma = self.sigma
        except (ValueError, ArithmeticError):
            sigma = 0.0
        if not 0 < sigma < 1e300:
            raise ValueError("epsilon, delta and target_distance together give no finite noise")
        return self

    @property
    def sigma(self) -> float:
        return privacy.sigma_for(epsilon=self.epsilon, delta=self.delta, distance=self.target_distance)


class Origins(BaseModel):
    """Where the parts of the objective come from; none may depend on rows that can be erased.

    Printed on certificates, hence their kind of text.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    features: Text = Field(
        max_length=500,
        description="How features were made, e.g. raw pixels divided by 16.",
        examples=["raw pixels divided by 16"],
    )
    constants: Text = Field(
        max_length=500,
        description="Where λ, scaling constants and the anchor come from.",
        examples=["chosen before the data was collected"],
    )
    anchor: Text = Field(
        "zero",
        max_length=500,
        description="Where the uploaded anchor comes from; `zero` when there is none.",
        examples=["fitted on a public dataset"],
    )


class Manifest(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    family: str = Field(
        pattern=r"^[a-z0-9][a-z0-9_-]{0,49}$",
        description="Kind of model: softmax, logistic, ridge, or a plug-in's name.",
        examples=["softmax"],
    )
    width: int = Field(ge=1, le=10_000_000, description="Features per row.")
    classes: int | None = Field(None, ge=2, le=100_000, description="Classes of a softmax model.")
    bias: bool = Field(True, description="Whether a constant feature is added.")
    lam: Positive = Field(alias="lambda", ge=1e-30, le=1e6, description="λ, on every parameter, biases too.")
    origins: Origins
    policy: Policy = Field(default_factory=Policy)

    @model_validator(mode="after")
    def _classes_fit_family(self) -> Self:
        if self.family in BUILT_IN_FAMILIES and (self.family == "softmax") != (self.classes is not None):
            raise ValueError("classes is needed for softmax, and only there")
        return self

    @model_validator(mode="after")
    def _plug_ins_retrain(self) -> Self:
        """Rule B1 needs a convex loss. A verifier knows that of the built-in families and of no other."""
        if self.family not in BUILT_IN_FAMILIES and self.policy.method != "retrain":
            raise ValueError("a plug-in family needs the policy's method to be retrain")
        return self


def known_families() -> frozenset[str]:
    """Built-in names and those of installed plug-ins; a plug-in's code is not imported for its name."""
    return frozenset(BUILT_IN_FAMILIES) | {found.name for found in entry_points(group=FAMILY_GROUP)}

"""What a model's owner wants: privacy, batching, method, and what happens when something does not hold."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from certificate import privacy

Method = Literal["tr", "retrain", "tr-paper", "guo2020", "zhang2024"]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]

# People in the smallest batch, unless the policy says otherwise. Whoever has the versions before and after
# the erasure of one person can nearly reconstruct that person's row; of ten people's rows only their sum.
SMALLEST_BATCH = 10


class QualityGate(BaseModel):
    """How well the new version must score on the holdout; one that does not is held for a decision.

    `min_f1` and `max_loss` look at the new version and the holdout alone. The other two compare it with the
    version before, which the erased rows have shaped: the decision then depends on them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    min_f1: float | None = Field(
        None, ge=0, le=100, description="Lowest micro-F1 of the new version, in points; classifiers only."
    )
    max_loss: float | None = Field(
        None, ge=0, allow_inf_nan=False, description="Highest mean holdout loss of the new version."
    )
    max_f1_drop: float | None = Field(
        None,
        ge=0,
        le=100,
        description="In points of micro-F1; classifiers only. Compares with the version before: prefer "
        "`min_f1`.",
    )
    max_loss_rise: float | None = Field(
        None,
        ge=0,
        allow_inf_nan=False,
        description="Compares with the version before; prefer `max_loss`. Of the mean holdout loss.",
    )

    @property
    def compares(self) -> bool:
        """Whether the decision depends on the version before, and so on the erased rows."""
        return self.max_f1_drop is not None or self.max_loss_rise is not None


class PublishedSettings(BaseModel):
    """Constants of the published methods, as far as a publication leaves them to its user."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: int = Field(5, ge=1, le=1000, description="T of tr-paper.")
    tau: float = Field(0.8, gt=0, le=1, description="τ of tr-paper's cap.")
    row_bound: Positive = Field(1.0, le=1e6, description="Longest row that guo2020 and zhang2024 assume.")
    constraint: Positive = Field(
        10.0, le=1e6, description="C of zhang2024: the weights' norm is at most this."
    )
    damping: Positive = Field(1.0, le=1e6, description="Damping of zhang2024's step.")


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
    min_batch_subjects: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description="No batch with fewer people is sealed, unless a deadline is near or someone insists; "
        "unset: 10, or `batch_subjects` where that is less.",
    )
    method: Method = Field(
        "tr",
        description="`tr`: unlearn from the published version. `retrain`: from the anchor, every time. "
        "`tr-paper`, `guo2020`, `zhang2024`: published methods, certified as published only.",
    )
    published: PublishedSettings = Field(
        default_factory=PublishedSettings, description="For `tr-paper`, `guo2020` and `zhang2024`."
    )
    heuristic: bool = Field(
        False,
        description="Accept an estimate without an (ε, δ) guarantee, where a family's Hessian-Lipschitz "
        "constant can only be sampled.",
    )
    curvature_probability: Positive | None = Field(
        None,
        description="p, the part of δ that measuring a network's curvature may use; unset: δ/10⁴. "
        "It adds up over releases.",
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
    cancellable: bool = Field(
        True,
        description="Whether a batch may be cancelled, while its noise is not drawn; erasures stay open.",
    )

    curvature_products: int = Field(
        2000,
        ge=1,
        le=1_000_000,
        description="Most products with a network's Hessian that measuring its curvature may cost.",
    )

    @model_validator(mode="after")
    def _one_release_fits(self) -> Self:
        if self.lifetime_epsilon < self.epsilon:
            raise ValueError("lifetime_epsilon is smaller than epsilon: not even one release would fit")
        return self

    @model_validator(mode="after")
    def _full_batches_are_large_enough(self) -> Self:
        if self.min_batch_subjects is not None and self.min_batch_subjects > self.batch_subjects:
            raise ValueError(
                "min_batch_subjects is larger than batch_subjects: a full batch would be too small to seal"
            )
        return self

    @property
    def smallest_batch(self) -> int:
        """The number of people below which a batch waits for company."""
        if self.min_batch_subjects is not None:
            return self.min_batch_subjects
        return min(SMALLEST_BATCH, self.batch_subjects)

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
        """Where no part of δ is used up by measuring; `Manifest.sigma` knows."""
        return self.sigma_after(0.0, self.target_distance)

    def sigma_after(self, failure_probability: float, distance: float) -> float:
        """Return σ for a distance, ε and what p and the noise's residual leave of δ."""
        return privacy.sigma_for(
            epsilon=self.epsilon, delta=self.delta_left(failure_probability), distance=distance
        )

    def delta_left(self, failure_probability: float) -> float:
        """Return what p and the residual of the noise leave of δ for the exact Gaussian."""
        return privacy.delta_left(
            delta=self.delta,
            failure_probability=failure_probability,
            residual=privacy.NOISE_RESIDUAL,
            epsilon=self.epsilon,
        )

    @model_validator(mode="after")
    def _curvature_leaves_room(self) -> Self:
        p = self.curvature_probability
        if p is not None and not privacy.SMALLEST_DELTA <= p <= self.delta / 2:
            raise ValueError("curvature_probability must lie between 1e-15 and half of delta")
        return self

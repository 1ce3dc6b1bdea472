"""The policy of a model: privacy, batching, method, and what happens if a release cannot be certified."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from lethe.certificate import privacy

Method = Literal["tr", "retrain", "tr-paper", "guo2020", "zhang2024"]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]

# People in the smallest batch, unless the policy says otherwise. Someone who has the versions before and
# after the erasure of one person can nearly reconstruct that person's row. With ten people, only the sum of
# their rows can be reconstructed.
SMALLEST_BATCH = 10


class QualityGate(BaseModel):
    """How well a new version must score on the holdout. If it does not, its batch is held for a decision.

    `min_f1` and `max_loss` depend on the new version and the holdout only. The other two limits compare it
    with the previous version, which was trained on the erased rows, so the decision depends on these rows.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    min_f1: float | None = Field(
        None, ge=0, le=100, description="Lowest micro-F1 of the new version, in points. Classifiers only."
    )
    max_loss: float | None = Field(
        None, ge=0, allow_inf_nan=False, description="Highest mean holdout loss of the new version."
    )
    max_f1_drop: float | None = Field(
        None,
        ge=0,
        le=100,
        description="Largest drop of micro-F1 against the previous version, in points. Classifiers only. "
        "Prefer `min_f1`, which does not depend on the erased rows.",
    )
    max_loss_rise: float | None = Field(
        None,
        ge=0,
        allow_inf_nan=False,
        description="Largest rise of the mean holdout loss against the previous version. Prefer `max_loss`, "
        "which does not depend on the erased rows.",
    )

    @property
    def compares(self) -> bool:
        """Whether the decision depends on the previous version, and so on the erased rows."""
        return self.max_f1_drop is not None or self.max_loss_rise is not None


class BaselineSettings(BaseModel):
    """The constants of the baselines that their publications leave to the user."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: int = Field(5, ge=1, le=1000, description="T of `tr-paper`: the number of steps.")
    tau: float = Field(0.8, gt=0, le=1, description="τ of `tr-paper`, which caps its steps.")
    row_bound: Positive = Field(
        1.0, le=1e6, description="The longest row that `guo2020` and `zhang2024` assume."
    )
    constraint: Positive = Field(
        10.0, le=1e6, description="C of `zhang2024`: the largest norm of the weights."
    )
    damping: Positive = Field(1.0, le=1e6, description="The damping of the step of `zhang2024`.")


class Policy(BaseModel):
    """The policy of a model, fixed before anything is computed on the data: σ follows from ε, δ and Δ*."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    epsilon: Positive = Field(1.0, le=privacy.LARGEST_EPSILON, description="ε of one release.")
    delta: Positive = Field(1e-5, ge=privacy.SMALLEST_DELTA, le=1e-2, description="δ of one release.")
    target_distance: Positive = Field(
        1e-2,
        le=1e6,
        description="Δ*: the distance to the retrained model that a release must be certified to be within.",
    )
    lifetime_epsilon: Positive = Field(
        8.0, le=1000, description="The largest ε of all releases since the last retraining together."
    )
    batch_subjects: int = Field(
        100, ge=1, le=1_000_000, description="A batch is sealed when this many people wait."
    )
    batch_age_seconds: float = Field(
        3600.0,
        ge=0,
        le=30 * 86400,
        description="A batch is sealed when its oldest request has waited this long.",
    )
    min_batch_subjects: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description="A batch with fewer people is not sealed unless a deadline is near or you flush it. "
        "Unset: 10, or `batch_subjects` if that is less.",
    )
    method: Method = Field(
        "tr",
        description="`tr`: unlearn from the published version. `retrain`: train again from the anchor every "
        "time. `tr-paper`, `guo2020`, `zhang2024`: baselines, certified only as their publications claim.",
    )
    published: BaselineSettings = Field(
        default_factory=BaselineSettings,
        description="Constants of the methods `tr-paper`, `guo2020` and `zhang2024`.",
    )
    heuristic: bool = Field(
        False,
        description="Accept an estimate without an (ε, δ) guarantee for families whose Hessian-Lipschitz "
        "constant can only be sampled.",
    )
    curvature_probability: Positive | None = Field(
        None,
        description="p, the part of δ that measuring a network's curvature may use up. It adds up over "
        "releases. Unset: δ/10⁴.",
    )
    fallback: Literal["retrain", "fail"] = Field(
        "retrain",
        description="What happens if Δ* cannot be certified or the lifetime ε would be exceeded: retrain, or "
        "hold the batch.",
    )
    quality_gate: QualityGate | None = Field(
        None,
        description="Limits on the quality of a new version. If one is exceeded, the batch is on hold until "
        "you approve or discard its draw.",
    )
    max_kl_alert: Positive | None = Field(
        None,
        le=1000,
        description="Raise an alert for a batch whose class drift, KL(R‖D), is larger.",
    )
    suppression_list: bool = Field(
        False,
        description="Keep a keyed hash of everyone who was erased, and filter their rows from data that is "
        "appended later. Otherwise nothing about them is kept.",
    )
    membership_test: bool = Field(
        False,
        description="Before the erased rows are purged, test whether the published model can still tell them "
        "from holdout rows. This needs a holdout and costs one retraining per batch.",
    )
    receipt_days: int = Field(
        90,
        ge=1,
        le=3653,
        description="How many days after completion receipts can be fetched. Then their salts are destroyed.",
    )
    evidence_days: int = Field(
        730,
        ge=1,
        le=3653,
        description="How many days the evidence of a certificate, which holds exact figures, is kept. The "
        "certificate outlives it and keeps verifying. A change applies to earlier certificates too.",
    )
    report_days: int = Field(
        365,
        ge=1,
        le=3653,
        description="How many days the figures of evaluations, audits, membership tests and advice are kept. "
        "A change applies to earlier reports too.",
    )
    time_limit_seconds: Positive = Field(
        3600.0, le=7 * 86400, description="The longest time that one attempt may take to solve."
    )
    cancellable: bool = Field(
        True,
        description="Whether a batch may be cancelled before its noise is drawn. Its erasures stay open.",
    )

    curvature_products: int = Field(
        2000,
        ge=1,
        le=1_000_000,
        description="The most products with a network's Hessian that measuring its curvature may take.",
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
        """The number of people below which a batch waits for more requests."""
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
            raise ValueError(
                "epsilon, delta and target_distance do not give a finite amount of noise; change one of them"
            )
        return self

    @property
    def sigma(self) -> float:
        """σ if no part of δ is used up by measuring curvature. `Manifest.sigma` takes that into account."""
        return self.sigma_after(0.0, self.target_distance)

    def sigma_after(self, failure_probability: float, distance: float) -> float:
        """Return σ for a distance, ε, and the part of δ that p and the residual of the noise leave."""
        return privacy.sigma_for(
            epsilon=self.epsilon, delta=self.delta_left(failure_probability), distance=distance
        )

    def delta_left(self, failure_probability: float) -> float:
        """Return the part of δ that p and the residual of the noise leave for the exact Gaussian."""
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
            raise ValueError("curvature_probability must be between 1e-15 and half of delta")
        return self

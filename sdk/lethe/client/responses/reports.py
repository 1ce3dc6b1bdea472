"""Evaluations, advice, audits and membership tests."""

from datetime import datetime
from uuid import UUID

from pydantic import Field

from lethe.client.responses.base import Response


class Report(Response):
    """The fields that evaluations, audits, membership tests and advice share."""

    id: UUID
    model: str
    version: int
    state: str
    error: str | None
    created_at: datetime
    completed_at: datetime | None
    deleted_at: datetime | None = None

    @property
    def ended(self) -> bool:
        """Whether the report is completed or failed. The figures of an ended one may have been deleted."""
        return self.state in ("completed", "failed", "deleted")


class Scores(Response):
    """Holdout scores: classifiers have an F1, ridge regression has the RMSE and R²."""

    loss: float
    micro_f1: float | None
    rmse: float | None
    r_squared: float | None


class DeltaF1(Response):
    """The difference in F1 between two models, in points, with its confidence interval."""

    points: float
    low: float
    high: float
    confidence: float


class Seconds(Response):
    """How long unlearning and retraining took. `current` is None for version 0."""

    current: float | None
    retrained: float


class Passes(Response):
    """How many passes over the rows unlearning and retraining took. `current` is None for version 0."""

    current: float | None
    retrained: float


class ClassDrift(Response):
    """How the last erasure changed the class mix, as KL divergences. One is None if a class vanished."""

    kl_retained_original: float
    kl_original_retained: float | None


class EvaluationResult(Response):
    """The scores of the current version, next to those of a model retrained on the remaining rows."""

    rows: int
    current: Scores
    retrained: Scores
    delta_f1: DeltaF1 | None
    retraining: str
    seconds: Seconds
    passes: Passes | None = None
    shift: ClassDrift | None


class Evaluation(Report):
    """An evaluation of a model's current version on its holdout."""

    result: EvaluationResult | None


class AdviceCell(Response):
    """One combination of λ and Δ*: the score to expect, the noise, and the cost of an erasure.

    `score_name` is `micro_f1` for classifiers and `r_squared` for ridge. `passes` and `seconds` are None if
    they are not known. A combination that is not `reachable` cannot be certified.
    """

    lam: float = Field(alias="lambda")
    target_distance: float
    sigma: float
    score: float
    score_name: str
    passes: float | None
    seconds: float | None
    reachable: bool


class AdviceChoice(Response):
    """The recommended combination of λ and Δ*, with the reason in a sentence."""

    lam: float = Field(alias="lambda")
    target_distance: float
    reason: str


class NetworkAdvice(Response):
    """Whether the curvature of a network seems large enough at the manifest's λ."""

    certifiable: bool
    curvature: float | None
    curvature_needed: float | None
    hessian_lipschitz: float | None
    route: str
    curvature_products: int | None
    solve_products: int
    smallest_lambda: float | None
    smallest_lambda_products: int | None


class AdviceResult(Response):
    """Figures for choosing λ and Δ*, measured only on holdout rows of people without training rows.

    A choice of λ or Δ* made after looking at rows that can be erased voids the assurance on the model's
    certificates.
    """

    rows: int
    basis: str
    fit_rows: int | None
    score_rows: int | None
    training_rows: int | None
    cells: tuple[AdviceCell, ...]
    recommendation: AdviceChoice | None
    warnings: tuple[str, ...]
    sigma_relative: float | None
    network: NetworkAdvice | None


class Advice(Report):
    """Advice for choosing λ and Δ*. Before registration, `version` is 0."""

    result: AdviceResult | None


class AuditTest(Response):
    """The outcome of one statistical test of an audit."""

    check: str
    statistic: float
    p_value: float


class AuditPower(Response):
    """How likely the audit is to detect one kind of deviation."""

    alternative: str
    power: float


class AuditResult(Response):
    """Whether the published noise is consistent with what the certificate claims."""

    verdict: str
    summary: str
    p_value: float
    level: float
    tests: tuple[str, ...]
    findings: tuple[AuditTest, ...]
    powers: tuple[AuditPower, ...]
    retained_data: str | None = None
    detectable_shift: float | None
    dimension: int
    allowance: float
    sigma: float
    target_distance: float
    replay_distance: float
    replay_seconds: float

    @property
    def consistent(self) -> bool:
        """Whether the verdict is that the noise is consistent with the certificate."""
        return self.verdict.startswith("consistent")


class Audit(Report):
    """An audit that replays a release and tests its noise."""

    certificate_id: UUID
    result: AuditResult | None


class Estimate(Response):
    """An estimated value with its confidence interval."""

    value: float
    low: float
    high: float


class Attack(Response):
    """How well one membership attack works.

    `tpr` maps false positive rates to true positive rates. A rate is None when there are too few rows to
    estimate it.
    """

    auc: Estimate
    tpr: dict[str, Estimate | None]


class Attacks(Response):
    """The two membership attacks: by the loss alone, and by a fitted classifier on loss and margin."""

    loss: Attack
    fitted: Attack


class MembershipResult(Response):
    """Membership attacks on the unlearned and on a retrained model.

    The differences are unlearned minus retrained. They are positive when unlearning left more to detect.
    """

    members: int
    unseen: int
    unlearned: Attacks
    retrained: Attacks
    delta_auc_loss: Estimate
    delta_auc_fitted: Estimate
    confidence: float


class Membership(Report):
    """A test of whether the published model still distinguishes the erased rows from unseen ones."""

    certificate_id: UUID
    result: MembershipResult | None

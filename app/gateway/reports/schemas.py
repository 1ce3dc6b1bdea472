"""Response schemas of evaluations, audits, membership tests and advice."""

from datetime import datetime
from typing import Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from app.db.states import ReportState


class Scores(BaseModel):
    """The scores of one model on the holdout. Classifiers have an F1, ridge has RMSE and R²."""

    loss: float = Field(description="The mean loss per row, without the regulariser.")
    micro_f1: float | None = Field(description="The micro-averaged F1. Null for ridge.")
    rmse: float | None = Field(description="The root mean squared error. Null for classifiers.")
    r_squared: float | None = Field(description="R². Null for classifiers, and if the targets do not vary.")


class DeltaF1(BaseModel):
    """The difference in F1, with its confidence interval."""

    points: float = Field(description="100·(F1(retrained) - F1(current)).")
    low: float = Field(description="The lower end of the interval, in points.")
    high: float = Field(description="The upper end of the interval, in points.")
    confidence: float = Field(description="The confidence level of the interval.")


class Seconds(BaseModel):
    """How long the computations took."""

    current: float | None = Field(
        description="The seconds of the solve that led to the current version. Null for version 0."
    )
    retrained: float = Field(description="The seconds of the retraining.")


class Passes(BaseModel):
    """How many passes over the rows the computations took. They do not depend on the machine."""

    current: float | None = Field(
        description="The passes of the solve that led to the current version. Null for version 0."
    )
    retrained: float = Field(description="The passes of the retraining.")


class ClassDrift(BaseModel):
    """The change of the class mix by an erasure: D is the mix before it, R the mix after it."""

    kl_retained_original: float = Field(description="KL(R‖D).")
    kl_original_retained: float | None = Field(description="KL(D‖R). Null if a class vanished.")


class EvaluationResult(BaseModel):
    """The result of an evaluation."""

    rows: int = Field(description="The number of holdout rows.")
    current: Scores = Field(description="The scores of the current version.")
    retrained: Scores = Field(
        description="The scores of a model trained from the anchor on the current rows. That model is not "
        "kept."
    )
    delta_f1: DeltaF1 | None = Field(description="Null for ridge.")
    retraining: str = Field(description="How the retraining ended.")
    seconds: Seconds
    passes: Passes | None = Field(
        None, description="Passes over the training rows. Null for evaluations from before they were counted."
    )
    shift: ClassDrift | None = Field(
        description="The class drift of the last erasure, from its evidence. Null for fewer than 20 people."
    )


class TestResult(BaseModel):
    """The result of one statistical test."""

    check: str = Field(description="The name of the test.")
    statistic: float = Field(description="The value of the test statistic.")
    p_value: float = Field(description="The p-value of this test alone.")


class TestPower(BaseModel):
    """The power of the tests against one alternative."""

    alternative: str = Field(description="The deviation from the certificate that is assumed.")
    power: float = Field(description="The probability that the tests detect the alternative.")


class AuditResult(BaseModel):
    """The result of an audit."""

    verdict: str = Field(description="Whether the release is consistent with its certificate.")
    summary: str = Field(description="The verdict, explained in a sentence.")
    p_value: float = Field(description="The smallest p-value, corrected for the number of tests.")
    level: float = Field(description="The significance level of the verdict.")
    tests: list[str] = Field(description="The tests that were run.")
    findings: list[TestResult] = Field(description="The result of each test.")
    powers: list[TestPower] = Field(description="The power of the tests against each alternative.")
    retained_data: str | None = Field(
        default=None,
        description="`match` or `mismatch`: whether the current rows are those that the certificate commits "
        "to.",
    )
    detectable_shift: float | None = Field(
        description="How far the release must lean towards the previous version, in units of the weights, "
        "for the audit to detect it with probability 0.9. Null if the direction is not known."
    )
    dimension: int = Field(description="The number of parameters.")
    allowance: float = Field(
        description="(Δ* + Δ_replay)/σ: how far from its centre the noise may appear to be."
    )
    sigma: float = Field(description="σ, the standard deviation of the noise.")
    target_distance: float = Field(description="Δ*, the certified distance.")
    replay_distance: float = Field(description="Δ_replay, the certified distance of the retraining.")
    replay_seconds: float = Field(description="How long the retraining took.")


class Estimate(BaseModel):
    """An estimate with its confidence interval."""

    value: float
    low: float = Field(description="The lower end of the confidence interval.")
    high: float = Field(description="The upper end of the confidence interval.")


class AttackResult(BaseModel):
    """How well one membership attack works."""

    auc: Estimate = Field(description="The area under the ROC curve. 0.5 is a coin toss.")
    tpr: dict[str, Estimate | None] = Field(
        description="The true positive rate at each false positive rate. Null if there are too few rows for "
        "an estimate."
    )


class AttackResults(BaseModel):
    """The results of both membership attacks."""

    loss: AttackResult = Field(description="An attack that takes rows with a low loss for members.")
    fitted: AttackResult = Field(description="A classifier on loss and margin, cross-validated.")


class MembershipResult(BaseModel):
    """The result of a membership test.

    Differences are unlearned minus retrained: they are positive if unlearning left more to find than
    retraining.
    """

    members: int = Field(description="The number of erased rows.")
    unseen: int = Field(description="The number of holdout rows.")
    unlearned: AttackResults = Field(description="The attacks on the unlearned model.")
    retrained: AttackResults = Field(description="The attacks on the retrained model.")
    delta_auc_loss: Estimate = Field(description="The difference in AUC of the loss attack.")
    delta_auc_fitted: Estimate = Field(description="The difference in AUC of the fitted attack.")
    confidence: float = Field(description="The confidence level of all intervals.")


class AdviceCell(BaseModel):
    """One combination of λ and Δ*: the score to expect, the noise, and the cost of an erasure."""

    model_config = ConfigDict(populate_by_name=True)

    lam: float = Field(alias="lambda", description="λ, the strength of the regularisation.")
    target_distance: float = Field(description="Δ*, the distance to certify.")
    sigma: float = Field(description="σ, the noise that the policy's ε and δ require for this Δ*.")
    score: float = Field(
        description="The mean score after noise, on holdout rows that the model was not fitted on."
    )
    score_name: Literal["micro_f1", "r_squared"] = Field(
        description="What the score is: the micro-averaged F1 of a classifier, or R² for ridge."
    )
    passes: float | None = Field(
        description="Passes over the rows that an erasure of 1 % of them took. Null if not counted."
    )
    seconds: float | None = Field(
        description="A rough estimate of the seconds per erasure, for as many rows as the training data has. "
        "Null if not known."
    )
    reachable: bool = Field(
        description="Whether rounding errors leave room to certify this Δ* at this λ. If not, do not choose "
        "it."
    )


class AdviceChoice(BaseModel):
    """The combination to choose."""

    model_config = ConfigDict(populate_by_name=True)

    lam: float = Field(alias="lambda", description="The recommended λ.")
    target_distance: float = Field(description="The recommended Δ*.")
    reason: str = Field(description="Why, in a sentence.")


class NetworkAdvice(BaseModel):
    """Whether the curvature of a network seems large enough at the manifest's λ."""

    certifiable: bool = Field(description="Whether a certificate seems within reach at this λ.")
    curvature: float | None = Field(description="The curvature that was measured.")
    curvature_needed: float | None = Field(description="The curvature that a certificate needs.")
    hessian_lipschitz: float | None = Field(description="A bound on how fast the curvature changes nearby.")
    route: str = Field(description="How the curvature would be measured.")
    curvature_products: int | None = Field(description="Products that measuring it would take.")
    solve_products: int = Field(description="Products that solving would take.")
    smallest_lambda: float | None = Field(description="The smallest λ that would do. Null if none does.")
    smallest_lambda_products: int | None = Field(description="Products that measuring would take there.")


class AdviceResult(BaseModel):
    """Figures for choosing λ and Δ*. They come only from holdout rows of people without training rows.

    A choice of λ or Δ* made after looking at rows that can be erased voids the assurance on the model's
    certificates.
    """

    rows: int = Field(description="The number of holdout rows of people without training rows.")
    basis: str = Field(description="Which rows the figures come from, in a sentence.")
    fit_rows: int | None = Field(description="How many of the rows were fitted. Null without cells.")
    score_rows: int | None = Field(description="How many of the rows were scored. Null without cells.")
    training_rows: int | None = Field(
        description="The number of training rows, which only the seconds depend on. Null if there are none "
        "yet."
    )
    cells: list[AdviceCell] = Field(
        description="The combinations that were measured. Empty for networks and baselines, and for a "
        "holdout of fewer than 30 rows."
    )
    recommendation: AdviceChoice | None = Field(
        description="The combination with the highest expected score. Of several within 0.1 points of F1, "
        "the one with the fewest passes. Null if there is none."
    )
    warnings: list[str] = Field(
        description="What to bear in mind. The first says which choices void the assurance."
    )
    sigma_relative: float | None = Field(
        description="The length of the noise relative to that of the weights, at the manifest's λ and Δ*."
    )
    network: NetworkAdvice | None = Field(description="Null for models that are not networks.")


class ReportView(BaseModel):
    """What all kinds of reports have in common."""

    id: UUID
    model: str = Field(description="The name of the model.")
    version: int = Field(description="The version that was measured.")
    state: ReportState = Field(description="How far the measurement is.")
    error: str | None = Field(description="Why the measurement failed. Null if it did not.")
    created_at: datetime
    completed_at: datetime | None = Field(description="When the measurement ended. Null until then.")
    deleted_at: datetime | None = Field(
        None,
        description="When the figures were deleted, because the policy keeps them no longer (`report_days`).",
    )


class EvaluationView(ReportView):
    """An evaluation of a model on its holdout."""

    result: EvaluationResult | None = Field(description="Null until the evaluation is completed.")


class AdviceView(ReportView):
    """Advice for choosing λ and Δ*. Before registration, `version` is 0."""

    result: AdviceResult | None = Field(description="Null until the advice is completed.")


class AuditView(ReportView):
    """An audit of a certificate."""

    certificate_id: UUID
    result: AuditResult | None = Field(description="Null until the audit is completed.")


class MembershipView(ReportView):
    """A membership test that was run with an erasure."""

    certificate_id: UUID
    result: MembershipResult | None = Field(description="Null if the test failed.")

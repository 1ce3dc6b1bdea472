from datetime import datetime
from uuid import UUID

from pydantic import BaseModel, Field

from app.db.states import ReportState


class Scores(BaseModel):
    """Classifiers have an F1, ridge has the other two; the loss is a mean without the regulariser."""

    loss: float
    micro_f1: float | None
    rmse: float | None
    r_squared: float | None = Field(description="Null also when the targets do not vary.")


class DeltaF1(BaseModel):
    points: float = Field(description="100·(F1(retrained) - F1(current)).")
    low: float
    high: float
    confidence: float


class Seconds(BaseModel):
    current: float | None = Field(description="Of the solve that led to the version; null for version 0.")
    retrained: float


class ShiftShown(BaseModel):
    kl_retained_original: float
    kl_original_retained: float | None = Field(description="Null when a class vanished.")


class EvaluationResult(BaseModel):
    rows: int = Field(description="Of the holdout.")
    current: Scores
    retrained: Scores = Field(description="Trained from the anchor on the rows that are there; not kept.")
    delta_f1: DeltaF1 | None
    retraining: str = Field(description="How the retraining ended.")
    seconds: Seconds
    shift: ShiftShown | None = Field(
        description="Of the last erasure, from its evidence; null for fewer than 20 people."
    )


class TestResult(BaseModel):
    check: str
    statistic: float
    p_value: float


class PowerShown(BaseModel):
    alternative: str
    power: float


class AuditResult(BaseModel):
    verdict: str
    summary: str
    p_value: float = Field(description="Corrected for the number of tests.")
    level: float
    tests: list[str] = Field(description="Which tests ran.")
    findings: list[TestResult]
    powers: list[PowerShown]
    retained_data: str | None = Field(
        default=None,
        description="`match` or `mismatch`: whether the rows are those the certificate commits to.",
    )
    detectable_shift: float | None = Field(description="Null without a direction towards the parent.")
    dimension: int
    allowance: float = Field(description="(Δ* + Δ_replay)/σ.")
    sigma: float
    target_distance: float
    replay_distance: float
    replay_seconds: float


class EstimateShown(BaseModel):
    value: float
    low: float
    high: float


class AttackShown(BaseModel):
    auc: EstimateShown
    tpr: dict[str, EstimateShown | None] = Field(
        description="True positive rate by false positive rate; null where there are too few rows to tell."
    )


class AttacksShown(BaseModel):
    loss: AttackShown = Field(description="The lower the loss, the likelier a member.")
    fitted: AttackShown = Field(description="Cross-validated on loss and margin.")


class MembershipResult(BaseModel):
    """Differences are unlearned minus retrained: positive when unlearning left more to find."""

    members: int
    unseen: int
    unlearned: AttacksShown
    retrained: AttacksShown
    delta_auc_loss: EstimateShown
    delta_auc_fitted: EstimateShown
    confidence: float


class ReportShown(BaseModel):
    id: UUID
    model: str
    version: int
    state: ReportState
    error: str | None
    created_at: datetime
    completed_at: datetime | None


class EvaluationShown(ReportShown):
    result: EvaluationResult | None


class AuditShown(ReportShown):
    certificate_id: UUID
    result: AuditResult | None


class MembershipShown(ReportShown):
    certificate_id: UUID
    result: MembershipResult | None

"""What evaluations, audits and membership tests answer."""

from datetime import datetime
from typing import Any
from uuid import UUID

from client.answers import Shown


class Report(Shown):
    """What evaluations, audits and membership tests have in common."""

    id: UUID
    model: str
    version: int
    state: str
    error: str | None
    created_at: datetime
    completed_at: datetime | None

    @property
    def ended(self) -> bool:
        return self.state in ("completed", "failed")


class Scores(Shown):
    loss: float
    micro_f1: float | None
    rmse: float | None
    r_squared: float | None


class DeltaF1(Shown):
    points: float
    low: float
    high: float
    confidence: float


class Seconds(Shown):
    current: float | None
    retrained: float


class EvaluationResult(Shown):
    rows: int
    current: Scores
    retrained: Scores
    delta_f1: DeltaF1 | None
    retraining: str
    seconds: Seconds
    shift: dict[str, float | None] | None


class Evaluation(Report):
    result: EvaluationResult | None


class AuditResult(Shown):
    verdict: str
    summary: str
    p_value: float
    level: float
    tests: tuple[str, ...]
    retained_data: str | None = None
    dimension: int
    sigma: float
    target_distance: float
    replay_distance: float
    replay_seconds: float

    @property
    def consistent(self) -> bool:
        return self.verdict.startswith("consistent")


class Audit(Report):
    certificate_id: UUID
    result: AuditResult | None


class Membership(Report):
    certificate_id: UUID
    result: dict[str, Any] | None

"""What the current version is worth on the holdout, beside retraining on the rows that are there."""

from dataclasses import asdict
from typing import Any
from uuid import UUID

from torch import Tensor

from app.bootstrap import Services
from app.db.states import PartRole
from app.db.tables import Certificate
from certificate.evidence import EvidenceRecord
from worker.evaluation.networks import holdout_of
from worker.evaluation.utility import Classification, Holdout, Regression, compare, regression
from worker.loading.families import family_of
from worker.pipeline.context import CannotContinue
from worker.pipeline.report import ReportJob, run_report


def evaluate(services: Services, job_id: UUID, token: UUID) -> None:
    run_report(services, job_id, token, _measure)


def _measure(job: ReportJob) -> dict[str, Any]:
    manifest = job.context.manifest
    holdout = job.objective(PartRole.HOLDOUT)
    scored = holdout_of(holdout)
    if scored is None:
        raise CannotContinue(f"a model of the family {manifest.family} cannot be scored here")
    current = holdout.flatten(job.published())
    solution = job.retrain(job.objective(PartRole.TRAIN), manifest.policy.target_distance)
    try:
        scores = _scores(scored, current, solution.w, real=family_of(manifest).classes(manifest) is None)
    finally:
        solution.w.zero_()
    certificate = job.certificate()
    return {
        **scores,
        "retraining": str(solution.outcome),
        "seconds": {"current": _seconds(certificate), "retrained": solution.seconds},
        "shift": _shift(certificate),
    }


def _scores(holdout: Holdout, current: Tensor, retrained: Tensor, *, real: bool) -> dict[str, Any]:
    if real:
        found, fresh = regression(holdout, current), regression(holdout, retrained)
        return {
            "rows": found.rows,
            "current": _shown(found),
            "retrained": _shown(fresh),
            "delta_f1": None,
        }
    both = compare(holdout, retrained=retrained, unlearned=current)
    return {
        "rows": both.unlearned.rows,
        "current": _shown(both.unlearned),
        "retrained": _shown(both.retrained),
        "delta_f1": {
            "points": both.delta_f1,
            "low": both.low,
            "high": both.high,
            "confidence": both.confidence,
        },
    }


def _shown(found: Classification | Regression) -> dict[str, float | None]:
    figures = asdict(found)
    return {name: figures.get(name) for name in ("loss", "micro_f1", "rmse", "r_squared")}


def _seconds(certificate: Certificate | None) -> float | None:
    """Of the solve that led to the version; version 0 came as it is."""
    if certificate is None:
        return None
    return EvidenceRecord.read(certificate.evidence, "evidence").seconds_total


def _shift(certificate: Certificate | None) -> dict[str, float | None] | None:
    """Return how far the last erasure moved the class mix, from its evidence; null for small sets."""
    if certificate is None:
        return None
    found = EvidenceRecord.read(certificate.evidence, "evidence").shift
    if found is None:
        return None
    return {
        "kl_retained_original": _rounded(found.kl_retained_original),
        "kl_original_retained": _rounded(found.kl_original_retained),
    }


def _rounded(divergence: float | None) -> float | None:
    """Three digits tell how far; seventeen would tell the counts."""
    return None if divergence is None else float(f"{divergence:.2e}")

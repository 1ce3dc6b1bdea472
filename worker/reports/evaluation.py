"""The evaluation report: scores of the current version on the holdout, beside those of retraining."""

from dataclasses import asdict
from typing import Any
from uuid import UUID

from torch import Tensor

from app.db.retention import read_evidence
from app.db.states import PartRole
from app.services import Services
from lethe.certificate.evidence import EvidenceRecord
from worker.context import CannotContinue, JobContext
from worker.data.families import family_of
from worker.distributed.rank0 import Team
from worker.evaluation.utility import Classification, Holdout, Regression, compare, holdout_of, regression
from worker.reports.report import ReportJob, run_report


def evaluate(services: Services, job_id: UUID, token: UUID, team: Team | None = None) -> None:
    """Run an evaluation job."""
    run_report(JobContext.load(services, job_id, token, team), _measure)


def _measure(job: ReportJob) -> dict[str, Any]:
    manifest = job.context.manifest
    holdout = job.objective(PartRole.HOLDOUT)
    scored = holdout_of(holdout)
    if scored is None:
        raise CannotContinue(f"models of the family {manifest.family} cannot be scored on a holdout")
    current = holdout.flatten(job.published())
    solution = job.retrain(job.objective(PartRole.TRAIN), manifest.policy.target_distance)
    try:
        scores = _scores(scored, current, solution.w, real=family_of(manifest).classes(manifest) is None)
    finally:
        solution.w.zero_()
    certificate = job.certificate()
    evidence = None if certificate is None else read_evidence(certificate)
    return {
        **scores,
        "retraining": str(solution.outcome),
        "seconds": {
            "current": None if evidence is None else evidence.seconds_total,
            "retrained": solution.seconds,
        },
        "passes": {"current": _passes(evidence), "retrained": solution.passes},
        "shift": _shift(evidence),
    }


def _scores(holdout: Holdout, current: Tensor, retrained: Tensor, *, real: bool) -> dict[str, Any]:
    if real:
        published, reference = regression(holdout, current), regression(holdout, retrained)
        return {
            "rows": published.rows,
            "current": _figures(published),
            "retrained": _figures(reference),
            "delta_f1": None,
        }
    both = compare(holdout, retrained=retrained, unlearned=current)
    return {
        "rows": both.unlearned.rows,
        "current": _figures(both.unlearned),
        "retrained": _figures(both.retrained),
        "delta_f1": {
            "points": both.delta_f1,
            "low": both.low,
            "high": both.high,
            "confidence": both.confidence,
        },
    }


def _figures(scores: Classification | Regression) -> dict[str, float | None]:
    figures = asdict(scores)
    return {name: figures.get(name) for name in ("loss", "micro_f1", "rmse", "r_squared")}


def _passes(evidence: EvidenceRecord | None) -> float | None:
    """Return the passes of the solve behind the version, or None for version 0."""
    passes = None if evidence is None else evidence.solver.get("passes")
    return float(passes) if isinstance(passes, int | float) else None


def _shift(evidence: EvidenceRecord | None) -> dict[str, float | None] | None:
    """Return the class drift of the last erasure from its evidence, or None for small sets."""
    drift = None if evidence is None else evidence.shift
    if drift is None:
        return None
    return {
        "kl_retained_original": _rounded(drift.kl_retained_original),
        "kl_original_retained": _rounded(drift.kl_original_retained),
    }


def _rounded(divergence: float | None) -> float | None:
    """Round to three digits. All seventeen would reveal the counts behind the divergence."""
    return None if divergence is None else float(f"{divergence:.2e}")

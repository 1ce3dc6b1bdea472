"""The replay audit of the current version: retrain on the rows that are there, and test the noise."""

from dataclasses import asdict
from typing import Any
from uuid import UUID

import torch
from torch import Tensor

from app.bootstrap import Services
from app.db.policy import Policy
from app.db.states import PartRole
from app.db.tables import Batch
from certificate import envelope, statement
from certificate.statement import AnyPredicate
from worker.evaluation import replay
from worker.pipeline.context import CannotContinue
from worker.pipeline.fitting import estimated_distance
from worker.pipeline.report import CHANGED, ReportJob, run_report

_TIGHTER = 10.0  # the replay's share of what the noise has to hide is small then


def audit(services: Services, job_id: UUID, token: UUID) -> None:
    run_report(services, job_id, token, _measure)


def _measure(job: ReportJob) -> dict[str, Any]:
    certificate = job.certificate()
    if certificate is None or certificate.id != job.report.certificate_id:
        raise CannotContinue(CHANGED)
    predicate = statement.parse(envelope.parse(certificate.envelope).payload).predicate
    objective = job.objective(PartRole.TRAIN)
    tensors = job.published()
    target = _held_to(job, predicate)
    solution = job.retrain(objective, target / _TIGHTER)
    replayed = estimated_distance(objective, solution)
    try:
        # The parent's checkpoint was deleted when it was superseded: there is none to test against.
        found = replay.audit(
            objective.flatten(tensors),
            solution.w,
            None,
            sigma=predicate.noise.sigma,
            target_distance=target,
            replay_distance=replayed,
            unit_roundoff=_roundoff(tensors),
        )
    except ValueError as problem:  # its messages speak of σ and shapes, never of rows
        raise CannotContinue(f"the audit cannot be run: {problem}") from None
    finally:
        solution.w.zero_()
    return {
        **asdict(found),
        "tests": [finding.check for finding in found.findings],
        "sigma": predicate.noise.sigma,
        "target_distance": target,
        "replay_distance": replayed,
        "replay_seconds": solution.seconds,
    }


def _held_to(job: ReportJob, predicate: AnyPredicate) -> float:
    """Δ*; a retrained release names none, since it is its own reference: the policy of its batch does."""
    if predicate.bound.distance_target > 0:
        return predicate.bound.distance_target
    version = job.context.current_version()
    with job.context.services.database.reading() as session:
        batch = session.get_one(Batch, version.batch_id)
    return Policy.model_validate(batch.policy).target_distance


def _roundoff(tensors: dict[str, Tensor]) -> float:
    """Half the spacing of floats at 1, of the coarsest type the weights are stored in."""
    return max(torch.finfo(tensor.dtype).eps for tensor in tensors.values()) / 2

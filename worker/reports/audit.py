"""The replay audit: retrain on the retained rows, and test whether the published version differs by noise."""

import hashlib
import hmac
from dataclasses import asdict
from enum import StrEnum
from typing import Any
from uuid import UUID

import torch
from torch import Tensor

from app.core.storage import Storage
from app.db.retention import read_evidence
from app.db.states import PartRole
from app.db.tables import Batch, Certificate
from app.services import Services
from lethe.certificate import envelope, statement
from lethe.certificate.commitment import commit_retained
from lethe.certificate.statement import AnyPredicate
from lethe.policy import Policy
from worker.context import CannotContinue, JobContext
from worker.distributed.rank0 import Team
from worker.evaluation import replay
from worker.evaluation.direction import ParentDirection, recover_direction
from worker.fitting import estimated_distance
from worker.reports.report import CHANGED, ReportJob, run_report

_TIGHTER = 10.0  # solve this much closer than Δ*, so that the replay's own error hardly matters


class RetainedData(StrEnum):
    """Whether the rows that the audit reads are those that the certificate commits to."""

    MATCH = "match"
    MISMATCH = "mismatch"


_MATCH = "The retained rows are those that the certificate commits to."
_MISMATCH = (
    "The retained rows are not those that the certificate commits to: a part of the training data was "
    "changed, added or removed after the release. Compare the stored parts with a backup of the release."
)


def audit(services: Services, job_id: UUID, token: UUID, team: Team | None = None) -> None:
    """Run a replay audit job."""
    run_report(JobContext.load(services, job_id, token, team), _measure)


def _measure(job: ReportJob) -> dict[str, Any]:
    certificate = job.certificate()
    if certificate is None or certificate.id != job.report.certificate_id:
        raise CannotContinue(CHANGED)
    predicate = statement.parse(envelope.parse(certificate.envelope).payload).predicate
    objective = job.objective(PartRole.TRAIN)
    tensors = job.published()
    target = _target_distance(job, predicate)
    solution = job.retrain(objective, target / _TIGHTER)
    replayed = estimated_distance(objective, solution)
    try:
        result = replay.audit(
            objective.flatten(tensors),
            solution.w,
            _lean(certificate, solution.w, predicate),
            sigma=predicate.noise.sigma,
            target_distance=target,
            replay_distance=replayed,
            unit_roundoff=_roundoff(tensors),
            grid_step=predicate.noise.grid_step or 0.0,
        )
    except ValueError as problem:  # its messages mention σ and shapes, never rows
        raise CannotContinue(f"the audit cannot be run: {problem}") from None
    finally:
        solution.w.zero_()
    retained = _retained_data(job, predicate)
    verdict = result.verdict if retained == RetainedData.MATCH else replay.Verdict.INCONSISTENT
    return {
        **asdict(result),
        "verdict": verdict,
        "summary": f"{_MATCH if retained == RetainedData.MATCH else _MISMATCH} {result.summary}",
        "retained_data": retained,
        "tests": [finding.check for finding in result.findings],
        "sigma": predicate.noise.sigma,
        "target_distance": target,
        "replay_distance": replayed,
        "replay_seconds": solution.seconds,
    }


def _lean(certificate: Certificate, replayed: Tensor, predicate: AnyPredicate) -> ParentDirection | None:
    """Return how far the version leans towards its parent.

    The parent's weights are deleted, so this uses the direction that the release stored in its evidence.
    Once that is deleted too, nobody can tell.
    """
    evidence = read_evidence(certificate)
    if evidence is None or evidence.replay is None:
        return None
    return recover_direction(
        evidence.replay,
        certificate_id=predicate.certificate_id,
        replayed=replayed,
        sigma=predicate.noise.sigma,
    )


def _retained_data(job: ReportJob, predicate: AnyPredicate) -> RetainedData:
    """Compare a commitment to the parts that the audit reads with the certificate's.

    The commitment depends on the order of the parts. After an erasure they are ordered by name; after an
    append the new parts come last.
    """
    context = job.context
    key = context.services.vault.keyed_hash(str(context.model.id), purpose="retained data commitment")
    parts, newest = context.parts(), context.current_version().generation
    digests = {part.id: _digest(context.services.storage, part.rows_path) for part in parts}
    appended = sorted(parts, key=lambda part: part.first_generation == newest)  # the sort is stable
    commitments = [
        commit_retained(key=key, part_digests=[digests[part.id] for part in order])
        for order in (parts, appended)
    ]
    claimed = predicate.objective.retained_data_commitment
    matches = [hmac.compare_digest(commitment, claimed) for commitment in commitments]
    return RetainedData.MATCH if any(matches) else RetainedData.MISMATCH


def _digest(storage: Storage, path: str) -> str:
    digest = hashlib.sha256()
    for chunk in storage.read(path):
        digest.update(chunk)
    return digest.hexdigest()


def _target_distance(job: ReportJob, predicate: AnyPredicate) -> float:
    """Return Δ* from the certificate.

    A retrained release is its own reference and states none. For it the policy of its batch applies.
    """
    if predicate.bound.distance_target > 0:
        return predicate.bound.distance_target
    version = job.context.current_version()
    with job.context.services.database.reading() as session:
        batch = session.get_one(Batch, version.batch_id)
    return Policy.model_validate(batch.policy).target_distance


def _roundoff(tensors: dict[str, Tensor]) -> float:
    """Return the unit roundoff of the coarsest type that the weights are stored in."""
    return max(torch.finfo(tensor.dtype).eps for tensor in tensors.values()) / 2

"""The replay audit of the current version: retrain on the rows that are there, and test the noise."""

import hashlib
import hmac
from dataclasses import asdict
from enum import StrEnum
from typing import Any
from uuid import UUID

import torch
from torch import Tensor

from app.bootstrap import Services
from app.db.policy import Policy
from app.db.states import PartRole
from app.db.tables import Batch, Certificate
from app.storage import Storage
from certificate import envelope, statement
from certificate.commitment import commit_retained
from certificate.evidence import EvidenceRecord
from certificate.statement import AnyPredicate
from worker.evaluation import replay
from worker.evaluation.direction import Lean, towards_parent
from worker.pipeline.context import CannotContinue
from worker.pipeline.fitting import estimated_distance
from worker.pipeline.report import CHANGED, ReportJob, run_report

_TIGHTER = 10.0  # the replay's share of what the noise has to hide is small then


class RetainedData(StrEnum):
    """Whether the rows the audit reads are those the certificate commits to."""

    MATCH = "match"
    MISMATCH = "mismatch"


_MATCH = "The retained rows are those that the certificate commits to."
_MISMATCH = (
    "The retained rows are not those that the certificate commits to: a part of the training data was "
    "changed, added or removed after the release. Compare the stored parts with a backup of the release."
)


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
        found = replay.audit(
            objective.flatten(tensors),
            solution.w,
            _lean(certificate, solution.w, predicate),
            sigma=predicate.noise.sigma,
            target_distance=target,
            replay_distance=replayed,
            unit_roundoff=_roundoff(tensors),
            grid_step=predicate.noise.grid_step or 0.0,
        )
    except ValueError as problem:  # its messages speak of σ and shapes, never of rows
        raise CannotContinue(f"the audit cannot be run: {problem}") from None
    finally:
        solution.w.zero_()
    retained = _retained_data(job, predicate)
    verdict = found.verdict if retained == RetainedData.MATCH else replay.Verdict.INCONSISTENT
    return {
        **asdict(found),
        "verdict": verdict,
        "summary": f"{_MATCH if retained == RetainedData.MATCH else _MISMATCH} {found.summary}",
        "retained_data": retained,
        "tests": [finding.check for finding in found.findings],
        "sigma": predicate.noise.sigma,
        "target_distance": target,
        "replay_distance": replayed,
        "replay_seconds": solution.seconds,
    }


def _lean(certificate: Certificate, replayed: Tensor, predicate: AnyPredicate) -> Lean | None:
    """The direction towards the parent that the release stored; the parent's weights are deleted."""
    stored = EvidenceRecord.read(certificate.evidence, "evidence").replay
    if stored is None:
        return None
    return towards_parent(
        stored, certificate_id=predicate.certificate_id, replayed=replayed, sigma=predicate.noise.sigma
    )


def _retained_data(job: ReportJob, predicate: AnyPredicate) -> RetainedData:
    """Commit to the bytes of the parts the audit reads, and compare with the certificate.

    The commitment depends on the parts' order: by name after an erasure, with the new parts last after an
    append.
    """
    context = job.context
    key = context.services.vault.keyed_hash(str(context.model.id), purpose="retained data commitment")
    parts, newest = context.parts(), context.current_version().generation
    digests = {part.id: _digest(context.services.storage, part.path) for part in parts}
    appended = sorted(parts, key=lambda part: part.first_generation == newest)  # stable
    commitments = [
        commit_retained(key=key, part_digests=[digests[part.id] for part in order])
        for order in (parts, appended)
    ]
    claimed = predicate.objective.retained_data_commitment
    held = [hmac.compare_digest(commitment, claimed) for commitment in commitments]
    return RetainedData.MATCH if any(held) else RetainedData.MISMATCH


def _digest(storage: Storage, path: str) -> str:
    digest = hashlib.sha256()
    for chunk in storage.read(path):
        digest.update(chunk)
    return digest.hexdigest()


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

"""Evaluations and audits as their owner sees them. A report is as far as its job."""

from uuid import UUID

from sqlalchemy import Select
from sqlalchemy.orm import Session

from app.certificates import service as certificates
from app.clock import new_id, now
from app.db import transitions
from app.db.states import JobKind, JobState, ModelState, ReportKind, ReportState, VersionState
from app.db.tables import Model, Report, Version
from app.errors import Conflict, NotFound
from app.models import service as models
from app.reports import repository
from app.reports.schemas import (
    AuditResult,
    AuditShown,
    EvaluationResult,
    EvaluationShown,
    MembershipResult,
    MembershipShown,
)
from app.versions import repository as versions


def start_evaluation(session: Session, tenant_id: UUID, name: str) -> Report:
    model = models.get(session, tenant_id, name, lock=True)
    _require_ready(model)
    current = versions.current(session, model.id)
    assert current is not None
    if not repository.has_holdout(session, model.id):
        raise Conflict("The model has no holdout to be evaluated on.")
    _require_none_under_way(session, repository.evaluations(model.id), "An evaluation of this model")
    return _start(session, ReportKind.EVALUATION, JobKind.EVALUATE, model, current)


def start_audit(session: Session, tenant_id: UUID, certificate_id: UUID) -> Report:
    certificate = certificates.get(session, certificate_id, tenant_id)
    version = repository.certified_version(session, certificate.id)
    if version is None:
        raise Conflict("The certificate has no checkpoint: its draw was discarded.")
    model = session.get_one(Model, certificate.model_id, with_for_update=True)
    _require_ready(model)
    session.refresh(version)  # as it is now that the model is locked
    if version.state != VersionState.CURRENT:
        raise Conflict(f"Version {version.number} was superseded: the rows it was fitted on are not held.")
    _require_none_under_way(session, repository.audits(certificate.id), "An audit of this certificate")
    return _start(session, ReportKind.AUDIT, JobKind.AUDIT, model, version)


def evaluation(session: Session, tenant_id: UUID, name: str, report_id: UUID) -> Report:
    model = models.get(session, tenant_id, name)
    return _found(repository.one(session, repository.evaluations(model.id), report_id), "evaluation")


def audit(session: Session, tenant_id: UUID, certificate_id: UUID, report_id: UUID) -> Report:
    certificate = certificates.get(session, certificate_id, tenant_id)
    return _found(repository.one(session, repository.audits(certificate.id), report_id), "audit")


def shown_evaluation(session: Session, report: Report) -> EvaluationShown:
    model, job = repository.surroundings(session, report)
    return EvaluationShown(
        id=report.id,
        model=model.name,
        version=report.version,
        state=derived_state(report, JobState(job.state)),
        error=report.error or job.error,
        created_at=report.created_at,
        completed_at=report.completed_at or job.finished_at,
        result=None if report.result is None else EvaluationResult.model_validate(report.result),
    )


def shown_audit(session: Session, report: Report) -> AuditShown:
    model, job = repository.surroundings(session, report)
    assert report.certificate_id is not None
    return AuditShown(
        id=report.id,
        model=model.name,
        version=report.version,
        certificate_id=report.certificate_id,
        state=derived_state(report, JobState(job.state)),
        error=report.error or job.error,
        created_at=report.created_at,
        completed_at=report.completed_at or job.finished_at,
        result=None if report.result is None else AuditResult.model_validate(report.result),
    )


def membership(session: Session, tenant_id: UUID, certificate_id: UUID) -> MembershipShown:
    """It is measured in its batch's job, so that whatever is found is an end."""
    certificate = certificates.get(session, certificate_id, tenant_id)
    report = session.scalar(repository.memberships(certificate.id))
    if report is None:
        raise NotFound("No membership test was run for this certificate.")
    model, _ = repository.surroundings(session, report)
    return MembershipShown(
        id=report.id,
        model=model.name,
        version=report.version,
        certificate_id=certificate.id,
        state=ReportState.FAILED if report.error is not None else ReportState.COMPLETED,
        error=report.error,
        created_at=report.created_at,
        completed_at=report.completed_at,
        result=None if report.result is None else MembershipResult.model_validate(report.result),
    )


def derived_state(report: Report, job: JobState) -> ReportState:
    """A job that ended well may still have nothing to report: then it left the reason."""
    if report.error is not None or job == JobState.FAILED:
        return ReportState.FAILED
    if job == JobState.DONE:
        return ReportState.COMPLETED
    return ReportState.RUNNING if job == JobState.RUNNING else ReportState.WAITING


def _start(session: Session, kind: ReportKind, job_kind: JobKind, model: Model, version: Version) -> Report:
    job = transitions.create_job(session, job_kind, model.id, now())
    report = Report(
        id=new_id(),
        kind=kind,
        model_id=model.id,
        certificate_id=version.certificate_id if kind == ReportKind.AUDIT else None,
        version=version.number,
        job_id=job.id,
        created_at=now(),
    )
    session.add(report)
    session.flush()
    return report


def _require_ready(model: Model) -> None:
    if model.state != ModelState.READY:
        raise Conflict(f"The model is {model.state}; only a ready one can be looked at.")


def _require_none_under_way(session: Session, among: Select[Report], what: str) -> None:
    """One at a time: each costs a training, and erasures wait for the same workers."""
    if (other := repository.under_way(session, among)) is not None:
        raise Conflict(f"{what} is under way already: {other.id}.")


def _found(report: Report | None, what: str) -> Report:
    if report is None:
        raise NotFound(f"There is no such {what}.")
    return report

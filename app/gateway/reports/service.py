"""Evaluations, audits, membership tests and advice: starting, finding and describing them.

A report has no state of its own. Its state follows from its job.
"""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from app.core.clock import new_id, now
from app.db import audit_log, transitions
from app.db.audit_log import Action
from app.db.states import JobKind, JobState, ModelState, PartRole, ReportKind, ReportState, VersionState
from app.db.tables import DatasetPart, Job, Model, Report, Version
from app.gateway.certificates import service as certificates
from app.gateway.certificates.repository import certified_version
from app.gateway.errors import Conflict, Gone, NotFound
from app.gateway.models import repository
from app.gateway.models import service as models
from app.gateway.models.versions import current_version
from app.gateway.reports.schemas import (
    AdviceResult,
    AdviceView,
    AuditResult,
    AuditView,
    EvaluationResult,
    EvaluationView,
    MembershipResult,
    MembershipView,
)
from app.gateway.sentences import describe_deleted_report

_STARTED = {
    ReportKind.EVALUATION: Action.EVALUATION_STARTED,
    ReportKind.ADVICE: Action.ADVICE_STARTED,
    ReportKind.AUDIT: Action.AUDIT_STARTED,
}
_NAMES = {
    ReportKind.EVALUATION: "evaluation",
    ReportKind.ADVICE: "advice",
    ReportKind.AUDIT: "audit",
    ReportKind.MEMBERSHIP: "membership test",
}
ENDED = (ReportState.COMPLETED, ReportState.FAILED, ReportState.DELETED)


def evaluations_of(model_id: UUID) -> Select[Report]:
    """Select the evaluations of a model."""
    return select(Report).where(Report.kind == ReportKind.EVALUATION, Report.model_id == model_id)


def audits_of(certificate_id: UUID) -> Select[Report]:
    """Select the audits of a certificate."""
    return select(Report).where(Report.kind == ReportKind.AUDIT, Report.certificate_id == certificate_id)


def advice_on(model_id: UUID) -> Select[Report]:
    """Select the advice on a model."""
    return select(Report).where(Report.kind == ReportKind.ADVICE, Report.model_id == model_id)


def start_evaluation(session: Session, tenant_id: UUID, name: str) -> Report:
    """Start an evaluation of the current version. Raise `Conflict` if it cannot start now."""
    model = models.get(session, tenant_id, name, lock=True)
    _require_ready(model)
    current = current_version(session, model.id)
    assert current is not None
    if not _has_holdout(session, model.id):
        raise Conflict("The model has no holdout to evaluate on. Register it with a holdout part.")
    _require_none_running(session, evaluations_of(model.id), "An evaluation of this model")
    return _start(session, ReportKind.EVALUATION, JobKind.EVALUATE, model, current)


def start_advice(session: Session, tenant_id: UUID, name: str) -> Report:
    """Start measuring advice on a model. Raise `Conflict` if it cannot start now."""
    model = models.get(session, tenant_id, name, lock=True)
    if model.state not in (*models.BEFORE_VALIDATION, ModelState.READY):
        raise Conflict(
            f"The model is {model.state}. You can ask for advice before validation and once it is ready."
        )
    if not repository.has_holdout(session, model.id):
        raise Conflict(
            "The model has no holdout, and advice is measured on nothing else. Upload rows of people who "
            "have no training rows as a holdout part, or choose lambda and target_distance on a public "
            "dataset."
        )
    _require_none_running(session, advice_on(model.id), "Advice on this model")
    current = current_version(session, model.id)
    return _start(session, ReportKind.ADVICE, JobKind.ADVISE, model, current)


def start_audit(session: Session, tenant_id: UUID, certificate_id: UUID) -> Report:
    """Start an audit of a certificate. Raise `Conflict` if it is not the current version's."""
    certificate = certificates.get(session, certificate_id, tenant_id)
    version = certified_version(session, certificate.id)
    if version is None:
        raise Conflict("The draw of this certificate was discarded, so there are no weights to audit.")
    model = session.get_one(Model, certificate.model_id, with_for_update=True)
    _require_ready(model)
    session.refresh(version)  # it may have changed before the model was locked
    if version.state != VersionState.CURRENT:
        raise Conflict(
            f"Version {version.number} was superseded, and the rows it was fitted on are deleted. Audit the "
            "certificate of the current version."
        )
    _require_none_running(session, audits_of(certificate.id), "An audit of this certificate")
    return _start(session, ReportKind.AUDIT, JobKind.AUDIT, model, version)


def get_evaluation(session: Session, tenant_id: UUID, name: str, report_id: UUID) -> Report:
    """Return an evaluation of the model, or raise `NotFound`."""
    model = models.get(session, tenant_id, name)
    report = session.scalar(evaluations_of(model.id).where(Report.id == report_id))
    if report is None:
        raise NotFound("The model has no evaluation with this id. Erasures delete earlier evaluations.")
    _require_kept(report, ReportKind.EVALUATION)
    return report


def get_advice(session: Session, tenant_id: UUID, name: str, report_id: UUID) -> Report:
    """Return advice on the model, or raise `NotFound`."""
    model = models.get(session, tenant_id, name)
    report = session.scalar(advice_on(model.id).where(Report.id == report_id))
    if report is None:
        raise NotFound("The model has no advice with this id. Erasures delete earlier advice.")
    _require_kept(report, ReportKind.ADVICE)
    return report


def get_audit(session: Session, tenant_id: UUID, certificate_id: UUID, report_id: UUID) -> Report:
    """Return an audit of the certificate, or raise `NotFound`."""
    certificate = certificates.get(session, certificate_id, tenant_id)
    report = session.scalar(audits_of(certificate.id).where(Report.id == report_id))
    if report is None:
        raise NotFound("The certificate has no audit with this id. Erasures delete earlier audits.")
    _require_kept(report, ReportKind.AUDIT)
    return report


def get_membership(session: Session, tenant_id: UUID, certificate_id: UUID) -> MembershipView:
    """Return the membership test of a certificate, or raise `NotFound`.

    It is measured within the job of its batch, so it is completed or failed by the time it is recorded.
    """
    certificate = certificates.get(session, certificate_id, tenant_id)
    row = session.execute(
        select(Report, Model.name)
        .join(Model, Model.id == Report.model_id)
        .where(Report.kind == ReportKind.MEMBERSHIP, Report.certificate_id == certificate.id)
    ).first()
    if row is None:
        raise NotFound(
            "The certificate has no membership test. The policy's membership_test decides whether an erasure "
            "runs one, and later erasures delete earlier tests."
        )
    report, model = row
    _require_kept(report, ReportKind.MEMBERSHIP)
    return MembershipView(
        id=report.id,
        model=model,
        version=report.version,
        certificate_id=certificate.id,
        state=ReportState.FAILED if report.error is not None else ReportState.COMPLETED,
        error=report.error,
        created_at=report.created_at,
        completed_at=report.completed_at,
        deleted_at=None,
        result=None if report.result is None else MembershipResult.model_validate(report.result),
    )


def describe_evaluation(session: Session, report: Report) -> EvaluationView:
    """Return an evaluation as auditors see it."""
    return describe_evaluations(session, [report])[0]


def describe_evaluations(session: Session, reports: Sequence[Report]) -> list[EvaluationView]:
    """Return evaluations as auditors see them. Takes one query, however many there are."""
    return [
        EvaluationView(
            **common,
            result=None if report.result is None else EvaluationResult.model_validate(report.result),
        )
        for report, common in zip(reports, _common_fields(session, reports), strict=True)
    ]


def describe_advice(session: Session, reports: Sequence[Report]) -> list[AdviceView]:
    """Return advice as its tenant sees it. Takes one query, however much there is."""
    return [
        AdviceView(
            **common, result=None if report.result is None else AdviceResult.model_validate(report.result)
        )
        for report, common in zip(reports, _common_fields(session, reports), strict=True)
    ]


def describe_audit(session: Session, report: Report) -> AuditView:
    """Return an audit as auditors see it."""
    return describe_audits(session, [report])[0]


def describe_audits(session: Session, reports: Sequence[Report]) -> list[AuditView]:
    """Return audits as auditors see them. Takes one query, however many there are."""
    return [
        AuditView(
            **common,
            certificate_id=report.certificate_id,
            result=None if report.result is None else AuditResult.model_validate(report.result),
        )
        for report, common in zip(reports, _common_fields(session, reports), strict=True)
    ]


def derived_state(report: Report, job: JobState) -> ReportState:
    """Derive the state of a report from its job.

    A job that succeeds may still record a reason for no result.
    """
    if report.deleted_at is not None:
        return ReportState.DELETED
    if report.error is not None or job == JobState.FAILED:
        return ReportState.FAILED
    if job == JobState.DONE:
        return ReportState.COMPLETED
    return ReportState.RUNNING if job == JobState.RUNNING else ReportState.WAITING


def _require_kept(report: Report, kind: ReportKind) -> None:
    """Raise `Gone` if the figures of a report were deleted. A membership test cannot be run again."""
    if report.deleted_at is not None:
        raise Gone(
            describe_deleted_report(
                _NAMES[kind], report.deleted_at, start_again=kind != ReportKind.MEMBERSHIP
            )
        )


def _common_fields(session: Session, reports: Sequence[Report]) -> list[dict[str, Any]]:
    rows = session.execute(
        select(Report.id, Model.name, Job)
        .join(Model, Model.id == Report.model_id)
        .join(Job, Job.id == Report.job_id)
        .where(Report.id.in_([report.id for report in reports]))
    )
    related = {report_id: (model, job) for report_id, model, job in rows}
    fields = []
    for report in reports:
        model, job = related[report.id]
        fields.append(
            {
                "id": report.id,
                "model": model,
                "version": report.version,
                "state": derived_state(report, JobState(job.state)),
                "error": report.error or job.error,
                "created_at": report.created_at,
                "completed_at": report.completed_at or job.finished_at,
                "deleted_at": report.deleted_at,
            }
        )
    return fields


def _start(
    session: Session, kind: ReportKind, job_kind: JobKind, model: Model, version: Version | None
) -> Report:
    """Add a report and its job. Only advice can be about a model without a version."""
    job = transitions.create_job(session, job_kind, model.id, now())
    report = Report(
        id=new_id(),
        kind=kind,
        model_id=model.id,
        certificate_id=version.certificate_id if version and kind == ReportKind.AUDIT else None,
        version=0 if version is None else version.number,
        job_id=job.id,
        created_at=now(),
    )
    session.add(report)
    session.flush()
    details = {"version": report.version, "report_id": str(report.id)}
    audit_log.record(session, model.tenant_id, _STARTED[kind], f"model/{model.name}", details)
    return report


def _has_holdout(session: Session, model_id: UUID) -> bool:
    holdout = select(DatasetPart.id).where(
        DatasetPart.model_id == model_id,
        DatasetPart.role == PartRole.HOLDOUT,
        DatasetPart.first_generation.is_not(None),
        DatasetPart.last_generation.is_(None),
    )
    return session.scalar(holdout.limit(1)) is not None


def _require_ready(model: Model) -> None:
    if model.state != ModelState.READY:
        raise Conflict(f"The model is {model.state}. Only a ready model can be evaluated or audited.")


def _require_none_running(session: Session, reports: Select[Report], what: str) -> None:
    """Allow one at a time: each costs a training, and erasures need the same workers."""
    ended = (JobState.DONE, JobState.FAILED)
    running = reports.join(Job, Job.id == Report.job_id).where(Job.state.not_in(ended))
    if (other := session.scalar(running.limit(1))) is not None:
        raise Conflict(f"{what} is already in progress: {other.id}. Wait until it has ended.")

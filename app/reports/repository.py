from uuid import UUID

from sqlalchemy import Row, Select, select
from sqlalchemy.orm import Session

from app.db.states import JobState, PartRole, ReportKind
from app.db.tables import DatasetPart, Job, Model, Report, Version


def evaluations(model_id: UUID) -> Select[Report]:
    return select(Report).where(Report.kind == ReportKind.EVALUATION, Report.model_id == model_id)


def audits(certificate_id: UUID) -> Select[Report]:
    return select(Report).where(Report.kind == ReportKind.AUDIT, Report.certificate_id == certificate_id)


def memberships(certificate_id: UUID) -> Select[Report]:
    return select(Report).where(Report.kind == ReportKind.MEMBERSHIP, Report.certificate_id == certificate_id)


def one(session: Session, among: Select[Report], report_id: UUID) -> Report | None:
    return session.scalar(among.where(Report.id == report_id))


def under_way(session: Session, among: Select[Report]) -> Report | None:
    ended = (JobState.DONE, JobState.FAILED)
    return session.scalar(among.join(Job, Job.id == Report.job_id).where(Job.state.not_in(ended)).limit(1))


def surroundings(session: Session, report: Report) -> Row[Model, Job]:
    return session.execute(
        select(Model, Job)
        .select_from(Report)
        .join(Model, Model.id == Report.model_id)
        .join(Job, Job.id == Report.job_id)
        .where(Report.id == report.id)
    ).one()


def has_holdout(session: Session, model_id: UUID) -> bool:
    held = select(DatasetPart.id).where(
        DatasetPart.model_id == model_id,
        DatasetPart.role == PartRole.HOLDOUT,
        DatasetPart.first_generation.is_not(None),
        DatasetPart.last_generation.is_(None),
    )
    return session.scalar(held.limit(1)) is not None


def certified_version(session: Session, certificate_id: UUID) -> Version | None:
    return session.scalar(select(Version).where(Version.certificate_id == certificate_id))

"""How long evidence and reports are kept, and how they are deleted.

Both hold exact figures without noise. A certificate outlives its evidence and keeps verifying. Of a report,
only its dates are left.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import Select, null, select, update
from sqlalchemy.orm import Session

from app.db import audit_log
from app.db.audit_log import Action
from app.db.tables import Batch, Certificate, Model, Report, Version
from lethe.certificate.evidence import EvidenceRecord
from lethe.policy import Policy


def read_evidence(certificate: Certificate) -> EvidenceRecord | None:
    """Return the evidence of a certificate, or None if it has been deleted."""
    if certificate.evidence_deleted_at is not None:
        return None
    return EvidenceRecord.read(certificate.evidence, "evidence")


def expired_evidence(model: Model, moment: datetime) -> Select[UUID]:
    """Select the certificates of a model whose evidence its policy keeps no longer than until `moment`.

    The policy is the present one, so a change also applies to what is stored already. The same holds for
    reports.
    """
    return select(Certificate.id).where(
        Certificate.model_id == model.id,
        Certificate.evidence_deleted_at.is_(None),
        Certificate.created_at < moment - timedelta(days=_policy(model).evidence_days),
    )


def expired_reports(model: Model, moment: datetime) -> Select[UUID]:
    """Select the reports of a model whose figures its policy keeps no longer than until `moment`."""
    return select(Report.id).where(
        Report.model_id == model.id,
        Report.deleted_at.is_(None),
        Report.completed_at < moment - timedelta(days=_policy(model).report_days),
    )


def delete_expired(session: Session, model: Model, moment: datetime, limit: int) -> int:
    """Delete expired evidence and reports of a model, at most `limit` of each. Return how many."""
    certificates = _delete_evidence(session, expired_evidence(model, moment).limit(limit), moment)
    reports = _delete_figures(session, expired_reports(model, moment).limit(limit), moment)
    for action, deleted in ((Action.EVIDENCE_DELETED, certificates), (Action.REPORTS_DELETED, reports)):
        if deleted:
            details = {"ids": [str(one) for one in deleted]}
            audit_log.record(session, model.tenant_id, action, f"model/{model.name}", details)
    return len(certificates) + len(reports)


def _policy(model: Model) -> Policy:
    return Policy.model_validate(model.manifest.get("policy", {}))


def _delete_evidence(session: Session, expired: Select[UUID], moment: datetime) -> Sequence[UUID]:
    """Delete evidence, and the class drift of the same batches, which is part of it."""
    ids = session.scalars(
        update(Certificate)
        .where(Certificate.id.in_(expired), Certificate.evidence_deleted_at.is_(None))
        .values(evidence=b"", evidence_deleted_at=moment)
        .returning(Certificate.id)
        .execution_options(synchronize_session=False)
    ).all()
    batches = select(Version.batch_id).where(Version.certificate_id.in_(ids))
    session.execute(
        update(Batch)
        .where(Batch.id.in_(batches))
        .values(shift=null())
        .execution_options(synchronize_session=False)
    )
    return ids


def _delete_figures(session: Session, expired: Select[UUID], moment: datetime) -> Sequence[UUID]:
    return session.scalars(
        update(Report)
        .where(Report.id.in_(expired), Report.deleted_at.is_(None))
        .values(result=null(), deleted_at=moment)
        .returning(Report.id)
        .execution_options(synchronize_session=False)
    ).all()

from uuid import UUID

from fastapi import APIRouter, Response

from app.access.guard import CanAdminModels, CanAudit, ServicesOf
from app.certificates import service as certificates
from app.db.tables import Report
from app.models import service as models
from app.models.schemas import ModelName
from app.paging import Cursor, Limit, Page, paged
from app.reports import repository, service
from app.reports.schemas import AuditShown, EvaluationShown, MembershipShown

router = APIRouter(prefix="/v1", tags=["reports"])


@router.post("/models/{name}/evaluations", status_code=202)
def start_evaluation(
    name: ModelName, response: Response, caller: CanAdminModels, services: ServicesOf
) -> EvaluationShown:
    """Score the current version on the holdout, beside retraining on the rows that are there.

    It costs a training. Erasures are not held up: if one changes the model meanwhile, the evaluation fails
    and can be asked for again.
    """
    with services.database.writing() as session:
        report = service.start_evaluation(session, caller.tenant_id, name)
        _follow(response, f"/v1/models/{name}/evaluations/{report.id}")
        return service.shown_evaluation(session, report)


@router.get("/models/{name}/evaluations")
def list_evaluations(
    name: ModelName, caller: CanAudit, services: ServicesOf, limit: Limit = 50, cursor: Cursor = None
) -> Page[EvaluationShown]:
    """Newest first."""
    with services.database.reading() as session:
        return paged(
            session,
            repository.evaluations(models.get(session, caller.tenant_id, name).id),
            Report.id,
            limit=limit,
            cursor=cursor,
            show=lambda report: service.shown_evaluation(session, report),
        )


@router.get("/models/{name}/evaluations/{evaluation_id}")
def get_evaluation(
    name: ModelName, evaluation_id: UUID, caller: CanAudit, services: ServicesOf
) -> EvaluationShown:
    """State, and the figures once it is completed. They are un-noised, so they are for auditors.

    Deleted when the next erasure takes rows from the data they were measured on.
    """
    with services.database.reading() as session:
        report = service.evaluation(session, caller.tenant_id, name, evaluation_id)
        return service.shown_evaluation(session, report)


@router.post("/certificates/{certificate_id}/audits", status_code=202)
def start_audit(
    certificate_id: UUID, response: Response, caller: CanAudit, services: ServicesOf
) -> AuditShown:
    """Replay the release: retrain on the rows that are there, and test whether the noise is as certified.

    Only for the current version: the rows of earlier ones are not held any more.
    """
    with services.database.writing() as session:
        report = service.start_audit(session, caller.tenant_id, certificate_id)
        _follow(response, f"/v1/certificates/{certificate_id}/audits/{report.id}")
        return service.shown_audit(session, report)


@router.get("/certificates/{certificate_id}/audits")
def list_audits(
    certificate_id: UUID, caller: CanAudit, services: ServicesOf, limit: Limit = 50, cursor: Cursor = None
) -> Page[AuditShown]:
    """Newest first."""
    with services.database.reading() as session:
        return paged(
            session,
            repository.audits(certificates.get(session, certificate_id, caller.tenant_id).id),
            Report.id,
            limit=limit,
            cursor=cursor,
            show=lambda report: service.shown_audit(session, report),
        )


@router.get("/certificates/{certificate_id}/audits/{audit_id}")
def get_audit(certificate_id: UUID, audit_id: UUID, caller: CanAudit, services: ServicesOf) -> AuditShown:
    """State, and p-values, power and verdict once it is completed.

    Deleted when the next erasure takes rows from the data it was measured on.
    """
    with services.database.reading() as session:
        report = service.audit(session, caller.tenant_id, certificate_id, audit_id)
        return service.shown_audit(session, report)


@router.get("/certificates/{certificate_id}/membership")
def get_membership(certificate_id: UUID, caller: CanAudit, services: ServicesOf) -> MembershipShown:
    """What the membership test found, where the policy's `membership_test` asked for one."""
    with services.database.reading() as session:
        return service.membership(session, caller.tenant_id, certificate_id)


def _follow(response: Response, where: str) -> None:
    response.headers["Location"] = where
    response.headers["Retry-After"] = "1"

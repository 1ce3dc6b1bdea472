"""Endpoints for evaluations, audits, membership tests and advice."""

from uuid import UUID

from fastapi import APIRouter, Response
from fastapi.responses import StreamingResponse

from app.db.tables import Report
from app.gateway.auth.guard import CanAdminModels, CanAudit, CanReadModels, ServicesOf
from app.gateway.certificates import service as certificates
from app.gateway.event_stream import STREAM_RESPONSES, Changes
from app.gateway.models import service as models
from app.gateway.models.schemas import ModelName
from app.gateway.pagination import Cursor, Limit, Page, fetch_page
from app.gateway.reports import service
from app.gateway.reports.schemas import AdviceView, AuditView, EvaluationView, MembershipView
from app.gateway.wake_up import WAKES_DISPATCHER

router = APIRouter(prefix="/v1", tags=["reports"])


@router.post("/models/{name}/evaluations", status_code=202, dependencies=[WAKES_DISPATCHER])
def start_evaluation(
    name: ModelName, response: Response, caller: CanAdminModels, services: ServicesOf
) -> EvaluationView:
    """Score the current version on the holdout, next to a model retrained on the current rows.

    An evaluation costs a training. It does not delay erasures: if one changes the model meanwhile, the
    evaluation fails, and you can start it again.
    """
    with services.database.writing() as session:
        report = service.start_evaluation(session, caller.tenant_id, name)
        _set_location(response, f"/v1/models/{name}/evaluations/{report.id}")
        return service.describe_evaluation(session, report)


@router.get("/models/{name}/evaluations")
def list_evaluations(
    name: ModelName, caller: CanAudit, services: ServicesOf, limit: Limit = 50, cursor: Cursor = None
) -> Page[EvaluationView]:
    """List the evaluations of a model, newest first."""
    with services.database.reading() as session:
        return fetch_page(
            session,
            service.evaluations_of(models.get(session, caller.tenant_id, name).id),
            Report.id,
            limit=limit,
            cursor=cursor,
            describe=lambda reports: service.describe_evaluations(session, reports),
        )


@router.get("/models/{name}/evaluations/{evaluation_id}")
def get_evaluation(
    name: ModelName, evaluation_id: UUID, caller: CanAudit, services: ServicesOf
) -> EvaluationView:
    """Return an evaluation, with its figures once it is completed.

    The figures have no noise, so only auditors see them. They are deleted when the next erasure removes
    rows from the data they were measured on.
    """
    with services.database.reading() as session:
        report = service.get_evaluation(session, caller.tenant_id, name, evaluation_id)
        return service.describe_evaluation(session, report)


@router.get(
    "/models/{name}/evaluations/{evaluation_id}/changes",
    response_class=StreamingResponse,
    responses=STREAM_RESPONSES,
)
async def follow_evaluation(
    name: ModelName,
    evaluation_id: UUID,
    caller: CanAudit,
    services: ServicesOf,
    changes: Changes,
) -> StreamingResponse:
    """Stream an evaluation as server-sent events: as it is now, and after every change, until it ends."""
    return await changes.follow(
        caller.tenant_id,
        lambda: get_evaluation(name, evaluation_id, caller, services),
        lambda report: report.state in service.ENDED,
    )


@router.post("/models/{name}/advice", status_code=202, dependencies=[WAKES_DISPATCHER])
def start_advice(
    name: ModelName, response: Response, caller: CanAdminModels, services: ServicesOf
) -> AdviceView:
    """Measure what to expect of several values of λ and Δ*, and recommend one of them.

    Ask for it before validation, while λ can still be changed. Only holdout rows of people without training
    rows are used. If you choose λ or Δ* after looking at rows that can be erased, the assurance on the
    certificates is void.
    """
    with services.database.writing() as session:
        report = service.start_advice(session, caller.tenant_id, name)
        _set_location(response, f"/v1/models/{name}/advice/{report.id}")
        return service.describe_advice(session, [report])[0]


@router.get("/models/{name}/advice")
def list_advice(
    name: ModelName, caller: CanReadModels, services: ServicesOf, limit: Limit = 50, cursor: Cursor = None
) -> Page[AdviceView]:
    """List the advice on a model, newest first."""
    with services.database.reading() as session:
        return fetch_page(
            session,
            service.advice_on(models.get(session, caller.tenant_id, name).id),
            Report.id,
            limit=limit,
            cursor=cursor,
            describe=lambda reports: service.describe_advice(session, reports),
        )


@router.get("/models/{name}/advice/{advice_id}")
def get_advice(name: ModelName, advice_id: UUID, caller: CanReadModels, services: ServicesOf) -> AdviceView:
    """Return advice on a model, with its figures once it is completed.

    It is deleted when the next erasure removes rows from the model's data.
    """
    with services.database.reading() as session:
        report = service.get_advice(session, caller.tenant_id, name, advice_id)
        return service.describe_advice(session, [report])[0]


@router.get(
    "/models/{name}/advice/{advice_id}/changes", response_class=StreamingResponse, responses=STREAM_RESPONSES
)
async def follow_advice(
    name: ModelName,
    advice_id: UUID,
    caller: CanReadModels,
    services: ServicesOf,
    changes: Changes,
) -> StreamingResponse:
    """Stream advice on a model as server-sent events: as it is now, and after every change, until it ends."""
    return await changes.follow(
        caller.tenant_id,
        lambda: get_advice(name, advice_id, caller, services),
        lambda report: report.state in service.ENDED,
    )


@router.post("/certificates/{certificate_id}/audits", status_code=202, dependencies=[WAKES_DISPATCHER])
def start_audit(
    certificate_id: UUID, response: Response, caller: CanAudit, services: ServicesOf
) -> AuditView:
    """Replay a release: retrain on the current rows, and test whether the noise is as certified.

    Only the current version can be audited, because the rows of earlier versions are deleted. An audit
    costs a training.
    """
    with services.database.writing() as session:
        report = service.start_audit(session, caller.tenant_id, certificate_id)
        _set_location(response, f"/v1/certificates/{certificate_id}/audits/{report.id}")
        return service.describe_audit(session, report)


@router.get("/certificates/{certificate_id}/audits")
def list_audits(
    certificate_id: UUID, caller: CanAudit, services: ServicesOf, limit: Limit = 50, cursor: Cursor = None
) -> Page[AuditView]:
    """List the audits of a certificate, newest first."""
    with services.database.reading() as session:
        return fetch_page(
            session,
            service.audits_of(certificates.get(session, certificate_id, caller.tenant_id).id),
            Report.id,
            limit=limit,
            cursor=cursor,
            describe=lambda reports: service.describe_audits(session, reports),
        )


@router.get("/certificates/{certificate_id}/audits/{audit_id}")
def get_audit(certificate_id: UUID, audit_id: UUID, caller: CanAudit, services: ServicesOf) -> AuditView:
    """Return an audit, with p-values, power and verdict once it is completed.

    It is deleted when the next erasure removes rows from the data it was measured on.
    """
    with services.database.reading() as session:
        report = service.get_audit(session, caller.tenant_id, certificate_id, audit_id)
        return service.describe_audit(session, report)


@router.get(
    "/certificates/{certificate_id}/audits/{audit_id}/changes",
    response_class=StreamingResponse,
    responses=STREAM_RESPONSES,
)
async def follow_audit(
    certificate_id: UUID,
    audit_id: UUID,
    caller: CanAudit,
    services: ServicesOf,
    changes: Changes,
) -> StreamingResponse:
    """Stream an audit as server-sent events: as it is now, and after every change, until it ends."""
    return await changes.follow(
        caller.tenant_id,
        lambda: get_audit(certificate_id, audit_id, caller, services),
        lambda report: report.state in service.ENDED,
    )


@router.get("/certificates/{certificate_id}/membership")
def get_membership(certificate_id: UUID, caller: CanAudit, services: ServicesOf) -> MembershipView:
    """Return the result of the membership test, if the policy's `membership_test` was on."""
    with services.database.reading() as session:
        return service.get_membership(session, caller.tenant_id, certificate_id)


def _set_location(response: Response, path: str) -> None:
    response.headers["Location"] = path
    response.headers["Retry-After"] = "1"

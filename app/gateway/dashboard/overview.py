"""The first page: open requests, nearest deadlines, batches in progress, recent certificates, models."""

from typing import Any

from fastapi import APIRouter, Request, Response
from sqlalchemy.orm import Session

from app.db.states import BatchState
from app.db.tables import Certificate, Model
from app.gateway.auth.caller import Caller
from app.gateway.auth.guard import ServicesOf
from app.gateway.auth.scopes import Scope
from app.gateway.batches import service as batches
from app.gateway.certificates.repository import of_tenant as certificates_of
from app.gateway.dashboard import queries
from app.gateway.dashboard.batch_pages import solver_view
from app.gateway.dashboard.certificate_pages import summarise_certificate
from app.gateway.dashboard.pages import PageRoute, render_page
from app.gateway.dashboard.sessions import SignedIn
from app.gateway.erasures import service as erasures
from app.gateway.models import repository as models
from app.gateway.models import service as model_service

router = APIRouter(route_class=PageRoute, include_in_schema=False)
ROWS = 6
MAX_BATCHES = 20
# A browser opens at most six connections to one host, and other tabs need some of them.
MAX_STREAMS = 2


@router.get("/")
def show_overview(request: Request, caller: SignedIn, services: ServicesOf) -> Response:
    """Show each part to callers whose scopes allow it. The others see which scope they lack."""
    with services.database.reading() as session:
        parts: dict[str, Any] = {
            "requests": _requests(session, caller) if caller.may(Scope.ERASURES_READ) else None,
            "work": _work(session, caller) if caller.may(Scope.MODELS_READ) else None,
            "certificates": _certificates(session, caller) if caller.may(Scope.CERTIFICATES_READ) else None,
        }
    return render_page(request, "overview.html", **parts)


def _requests(session: Session, caller: Caller) -> dict[str, Any]:
    nearest = queries.nearest_deadlines(session, caller.tenant_id, ROWS)
    return {
        "open": queries.count_rows(session, queries.open_erasures(caller.tenant_id)),
        "overdue": queries.count_rows(session, queries.overdue_erasures(caller.tenant_id)),
        "nearest": erasures.describe_erasures(session, nearest),
    }


def _work(session: Session, caller: Caller) -> dict[str, Any]:
    query = queries.open_batches(caller.tenant_id)
    rows = session.scalars(query.limit(MAX_BATCHES)).all()
    open_batches = batches.describe_batches(session, rows, caller)
    followed = [batch for batch in open_batches if batch.state == BatchState.RUNNING][:MAX_STREAMS]
    newest = session.scalars(models.of_tenant(caller.tenant_id).order_by(Model.id.desc()).limit(ROWS)).all()
    return {
        "open": queries.count_rows(session, query),
        "batches": [batch for batch in open_batches if batch not in followed],
        "followed": [(batch, solver_view(session, batch)) for batch in followed],
        "held": sum(batch.state == BatchState.HELD for batch in open_batches),
        "models": model_service.describe_models(session, newest),
        "model_count": queries.count_rows(session, models.of_tenant(caller.tenant_id)),
    }


def _certificates(session: Session, caller: Caller) -> dict[str, Any]:
    query = certificates_of(caller.tenant_id)
    newest = session.scalars(query.order_by(Certificate.id.desc()).limit(ROWS)).all()
    return {
        "count": queries.count_rows(session, query),
        "newest": [summarise_certificate(certificate) for certificate in newest],
    }

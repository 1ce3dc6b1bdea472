"""The first page: what is open, what is due, what runs, what came of it."""

from typing import Any

from fastapi import APIRouter, Request, Response
from sqlalchemy.orm import Session

from app.access.cache import Caller
from app.access.guard import ServicesOf
from app.access.scopes import Scope
from app.batches import service as batches
from app.certificates.repository import of_tenant as certificates_of
from app.db.states import BatchState
from app.db.tables import Certificate, Model
from app.erasures import service as erasures
from app.models import repository as models
from app.models import service as model_service
from app.web import queries
from app.web.batch_pages import live_view
from app.web.certificate_pages import summary
from app.web.guard import SignedIn
from app.web.pages import PageRoute, page

router = APIRouter(route_class=PageRoute, include_in_schema=False)
ROWS = 6
STREAMS = 2  # a browser opens six connections to one host, and other tabs want some too


@router.get("/")
def overview(request: Request, caller: SignedIn, services: ServicesOf) -> Response:
    """Each part for those who may see it; the others are told which scope they lack."""
    with services.database.reading() as session:
        parts: dict[str, Any] = {
            "requests": _requests(session, caller) if caller.may(Scope.ERASURES_READ) else None,
            "work": _work(session, caller) if caller.may(Scope.MODELS_READ) else None,
            "certificates": _certificates(session, caller) if caller.may(Scope.CERTIFICATES_READ) else None,
        }
    return page(request, "overview.html", **parts)


def _requests(session: Session, caller: Caller) -> dict[str, Any]:
    nearest = queries.nearest_deadlines(session, caller.tenant_id, ROWS)
    return {
        "open": queries.size_of(session, queries.open_erasures(caller.tenant_id)),
        "overdue": queries.size_of(session, queries.overdue(caller.tenant_id)),
        "nearest": [erasures.shown(session, erasure) for erasure in nearest],
    }


def _work(session: Session, caller: Caller) -> dict[str, Any]:
    query = queries.open_batches(caller.tenant_id)
    shown = [batches.shown(session, batch, caller) for batch in session.scalars(query.limit(20))]
    running = [batch for batch in shown if batch.state == BatchState.RUNNING]
    known = session.scalars(models.of_tenant(caller.tenant_id).order_by(Model.id.desc()).limit(ROWS))
    return {
        "open": queries.size_of(session, query),
        "batches": [batch for batch in shown if batch not in running[:STREAMS]],
        "running": [(batch, live_view(session, batch)) for batch in running[:STREAMS]],
        "held": sum(batch.state == BatchState.HELD for batch in shown),
        "models": [model_service.shown(session, model) for model in known],
        "model_count": queries.size_of(session, models.of_tenant(caller.tenant_id)),
    }


def _certificates(session: Session, caller: Caller) -> dict[str, Any]:
    query = certificates_of(caller.tenant_id)
    newest = session.scalars(query.order_by(Certificate.id.desc()).limit(ROWS))
    return {"count": queries.size_of(session, query), "newest": [summary(found) for found in newest]}

"""The page that shows the audit log."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response

from app.db import audit_log
from app.gateway.audit_log import NDJSON, export_entries, fetch_entries
from app.gateway.auth.guard import ServicesOf
from app.gateway.csv_files import CSV
from app.gateway.dashboard.pages import ROWS_PER_PAGE, PageRoute, render_page
from app.gateway.dashboard.sessions import Auditor

router = APIRouter(prefix="/audit-log", route_class=PageRoute, include_in_schema=False)
# What an entry can be about: the folder of its page, and its name.
TARGET_PAGES = {
    "erasure": ("erasures", "Request"),
    "batch": ("batches", "Batch"),
    "model": ("models", "Model"),
    "certificate": ("certificates", "Certificate"),
}


@router.get("")
def show_audit_log(
    request: Request,
    caller: Auditor,
    services: ServicesOf,
    cursor: Annotated[str | None, Query(pattern=r"^[0-9]{1,15}$")] = None,
) -> Response:
    """Show one page of the tenant's audit log."""
    with services.database.reading() as session:
        query = audit_log.entries(caller.tenant_id)
        page = fetch_entries(session, query, limit=ROWS_PER_PAGE, cursor=cursor)
    return render_page(request, "audit_log.html", page=page, target_pages=TARGET_PAGES)


@router.get("/export.{kind}")
def export_audit_log(kind: Literal["csv", "ndjson"], caller: Auditor, services: ServicesOf) -> Response:
    """Download the whole audit log. `lethe audit-log verify` accepts the NDJSON file."""
    query = audit_log.entries(caller.tenant_id)
    return export_entries(services, caller.tenant_id, query, NDJSON if kind == "ndjson" else CSV)

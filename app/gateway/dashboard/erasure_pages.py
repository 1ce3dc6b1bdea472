"""Pages about erasure requests: the searchable list, one request, and its receipts."""

from typing import Annotated
from urllib.parse import urlencode
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse
from sqlalchemy import Select

from app.core.clock import now
from app.db.states import TaskState
from app.db.tables import Erasure
from app.gateway.auth.guard import ServicesOf
from app.gateway.csv_files import attach_csv
from app.gateway.dashboard import queries
from app.gateway.dashboard.erasure_export import COLUMNS, export_rows
from app.gateway.dashboard.pages import ROWS_PER_PAGE, PageRoute, attach_json, render_list, render_page
from app.gateway.dashboard.sessions import ErasureReader
from app.gateway.erasures import receipts, repository, service
from app.gateway.erasures.receipts import CURSOR, ReceiptPage
from app.gateway.errors import Gone, NotFound
from app.gateway.models.schemas import ModelName
from lethe.certificate.commitment import IDENTIFIER_RULE_IN_WORDS

router = APIRouter(prefix="/erasures", route_class=PageRoute, include_in_schema=False)
Text = Annotated[str, Query(max_length=300, pattern=r"^[^\x00-\x1f\x7f]*$")]


@router.get("")
def list_erasures(
    request: Request,
    caller: ErasureReader,
    services: ServicesOf,
    q: Text = "",
    state: Text = "",
    model: Text = "",
    overdue: bool = False,
    cursor: UUID | None = None,
) -> Response:
    """List requests. A search for an id opens that request; any other text is matched with references."""
    search = q.strip()
    if (erasure_id := _parse_uuid(search)) is not None:
        return RedirectResponse(f"/erasures/{erasure_id}", 303)
    query = _filtered(caller.tenant_id, search, state, model, overdue=overdue)
    with services.database.reading() as session:
        names = queries.model_names(session, caller.tenant_id)
    filters = {"q": search, "state": state, "model": model, "overdue": "true" if overdue else ""}
    return render_list(
        request,
        services,
        "erasures.html",
        query,
        Erasure.id,
        cursor=cursor,
        show=service.describe_erasures,
        models=names,
        filters=filters,
        filter_query=urlencode({name: value for name, value in filters.items() if value}),
    )


@router.get("/export.csv")
def export_erasures(
    caller: ErasureReader,
    services: ServicesOf,
    q: Text = "",
    state: Text = "",
    model: Text = "",
    overdue: bool = False,
) -> Response:
    """Download every request that the filters match, newest first, as CSV."""
    query = _filtered(caller.tenant_id, q.strip(), state, model, overdue=overdue, all_pages=True)
    return attach_csv(COLUMNS, export_rows(services, query), f"requests-{now():%Y-%m-%d}.csv")


def _filtered(
    tenant_id: UUID, reference: str, state: str, model: str, *, overdue: bool, all_pages: bool = False
) -> Select[Erasure]:
    """Select the requests that the filters of the list match."""
    return repository.filtered(
        tenant_id,
        state=TaskState(state) if state in set(TaskState) else None,
        model=model or None,
        reference=reference or None,
        overdue_at=now() if overdue else None,
        all_pages=all_pages,
    )


@router.get("/{erasure_id}")
def show_erasure(
    request: Request,
    erasure_id: UUID,
    caller: ErasureReader,
    services: ServicesOf,
    cursor: Annotated[str | None, Query(pattern=CURSOR)] = None,
) -> Response:
    """Show one request: its state, deadline, result for each model, and receipts."""
    with services.database.reading() as session:
        erasure = service.describe_erasure(session, service.get(session, caller.tenant_id, erasure_id))
        receipt_page: ReceiptPage | None
        try:
            receipt_page = receipts.fetch_receipts(
                session,
                services.data_keys,
                caller.tenant_id,
                erasure_id,
                model=None,
                ordinal=None,
                limit=ROWS_PER_PAGE,
                cursor=cursor,
            )
        except Gone:
            receipt_page = None
        outcomes = repository.people_by_outcome(session, erasure_id)
    return render_page(
        request,
        "erasure.html",
        erasure=erasure,
        receipts=receipt_page,
        outcomes=outcomes,
        letters=erasure.state == TaskState.COMPLETED,
        identifier_rule=IDENTIFIER_RULE_IN_WORDS,
    )


@router.get("/{erasure_id}/receipts/{name}/{ordinal}.json")
def download_receipt(
    erasure_id: UUID, name: ModelName, ordinal: int, caller: ErasureReader, services: ServicesOf
) -> Response:
    """Download one receipt in the form that `lethe verify --receipt` accepts."""
    with services.database.writing() as session:
        receipt_page = receipts.download_receipts(
            session,
            services.data_keys,
            caller.tenant_id,
            erasure_id,
            model=name,
            ordinal=ordinal,
            limit=1,
            cursor=None,
        )
    if not receipt_page.items or receipt_page.items[0].receipt is None:
        raise NotFound("This request has no such receipt.")
    document = receipt_page.items[0].model_dump(mode="json")["receipt"]
    return attach_json(document, f"receipt-{str(erasure_id)[-8:]}-{name}-{ordinal}.json")


def _parse_uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None

"""Requests: a list to search, and each as the person it concerns would understand it."""

from typing import Annotated
from urllib.parse import urlencode
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse, RedirectResponse

from app.access.guard import ServicesOf
from app.clock import now
from app.db.states import TaskState
from app.db.tables import Erasure
from app.erasures import receipts, repository, service
from app.erasures.receipts import CURSOR, ReceiptPage
from app.errors import Gone, NotFound
from app.models.schemas import ModelName
from app.web import queries
from app.web.guard import SeesErasures
from app.web.listing import ROWS, listing
from app.web.pages import PageRoute, page
from certificate.commitment import IDENTIFIER_RULE_IN_WORDS

router = APIRouter(prefix="/erasures", route_class=PageRoute, include_in_schema=False)
Text = Annotated[str, Query(max_length=300, pattern=r"^[^\x00-\x1f\x7f]*$")]


@router.get("")
def list_erasures(
    request: Request,
    caller: SeesErasures,
    services: ServicesOf,
    q: Text = "",
    state: Text = "",
    model: Text = "",
    overdue: bool = False,
    cursor: UUID | None = None,
) -> Response:
    """An id leads to its request; anything else is looked for among the references."""
    wanted = q.strip()
    if (erasure_id := _uuid(wanted)) is not None:
        return RedirectResponse(f"/erasures/{erasure_id}", 303)
    query = repository.filtered(
        caller.tenant_id,
        state=TaskState(state) if state in set(TaskState) else None,
        model=model or None,
        reference=wanted or None,
        overdue_at=now() if overdue else None,
    )
    with services.database.reading() as session:
        names = queries.model_names(session, caller.tenant_id)
    chosen = {"q": wanted, "state": state, "model": model, "overdue": overdue}
    return listing(
        request,
        services,
        "erasures.html",
        query,
        Erasure.id,
        cursor=cursor,
        show=service.shown,
        models=names,
        chosen=chosen,
        chosen_query=urlencode(
            {name: str(value).lower() if value is True else value for name, value in chosen.items() if value}
        ),
    )


@router.get("/{erasure_id}")
def show_erasure(
    request: Request,
    erasure_id: UUID,
    caller: SeesErasures,
    services: ServicesOf,
    cursor: Annotated[str | None, Query(pattern=CURSOR)] = None,
) -> Response:
    with services.database.reading() as session:
        erasure = service.shown(session, service.get(session, caller.tenant_id, erasure_id))
        found: ReceiptPage | None
        try:
            found = receipts.page(
                session,
                services.vault,
                caller.tenant_id,
                erasure_id,
                model=None,
                ordinal=None,
                limit=ROWS,
                cursor=cursor,
            )
        except Gone:
            found = None
        outcomes = repository.people_by_outcome(session, erasure_id)
    return page(
        request,
        "erasure.html",
        erasure=erasure,
        receipts=found,
        outcomes=outcomes,
        identifier_rule=IDENTIFIER_RULE_IN_WORDS,
    )


@router.get("/{erasure_id}/receipts/{name}/{ordinal}.json")
def download_receipt(
    erasure_id: UUID, name: ModelName, ordinal: int, caller: SeesErasures, services: ServicesOf
) -> Response:
    """The document itself, as `verify --receipt` takes it."""
    with services.database.reading() as session:
        found = receipts.page(
            session,
            services.vault,
            caller.tenant_id,
            erasure_id,
            model=name,
            ordinal=ordinal,
            limit=1,
            cursor=None,
        )
    if not found.items or found.items[0].receipt is None:
        raise NotFound("There is no such receipt.")
    document = found.items[0].model_dump(mode="json")["receipt"]
    file = f"receipt-{str(erasure_id)[-8:]}-{name}-{ordinal}.json"
    return JSONResponse(document, headers={"Content-Disposition": f'attachment; filename="{file}"'})


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None

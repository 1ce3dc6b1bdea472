from uuid import UUID

from fastapi import APIRouter, Response

from app.access.guard import CanReadErasures, CanWriteErasures, ServicesOf
from app.db.tables import Erasure
from app.erasures import repository, service
from app.erasures.schemas import ErasureRequest, ErasureShown
from app.paging import Cursor, Limit, Page, paged

router = APIRouter(prefix="/v1/erasures", tags=["erasures"])


@router.post("", status_code=202)
def request_erasure(
    body: ErasureRequest, response: Response, caller: CanWriteErasures, services: ServicesOf
) -> ErasureShown:
    """Ask that people be erased. An unknown identifier is no error: that would tell who was in the data."""
    shown = service.record(services, caller.tenant_id, body)
    response.headers["Location"] = f"/v1/erasures/{shown.id}"
    response.headers["Retry-After"] = "5"
    return shown


@router.get("")
def list_erasures(
    caller: CanReadErasures, services: ServicesOf, limit: Limit = 50, cursor: Cursor = None
) -> Page[ErasureShown]:
    """Newest first."""
    with services.database.reading() as session:
        return paged(
            session,
            repository.of_tenant(caller.tenant_id),
            Erasure.id,
            limit=limit,
            cursor=cursor,
            show=lambda erasure: service.shown(session, erasure),
        )


@router.get("/{erasure_id}")
def get_erasure(erasure_id: UUID, caller: CanReadErasures, services: ServicesOf) -> ErasureShown:
    """State, deadline, and one task per model with its outcomes, version and certificate."""
    with services.database.reading() as session:
        return service.shown(session, service.get(session, caller.tenant_id, erasure_id))

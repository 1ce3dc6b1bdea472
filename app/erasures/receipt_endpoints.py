from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query

from app import logs
from app.access.guard import CanReadErasures, CanWriteErasures, ServicesOf
from app.erasures import receipts
from app.erasures.receipts import CURSOR, Acknowledged, ReceiptPage
from app.models.schemas import NAME
from app.paging import Limit

log = logs.get("gateway")
router = APIRouter(prefix="/v1/erasures/{erasure_id}/receipts", tags=["erasures"])


@router.get("")
def list_receipts(
    erasure_id: UUID,
    caller: CanReadErasures,
    services: ServicesOf,
    model: Annotated[str | None, Query(pattern=NAME, description="Only of the task on this model.")] = None,
    ordinal: Annotated[
        int | None, Query(ge=0, lt=10_000_000, description="Only of this subject of the request.")
    ] = None,
    limit: Limit = 50,
    cursor: Annotated[
        str | None, Query(pattern=CURSOR, description="`next_cursor` of the page before.")
    ] = None,
) -> ReceiptPage:
    """What to hand to each subject. In the order of the request; only of tasks that are completed.

    Receipts can be had until they are acknowledged, or for the policy's `receipt_days`; then 410.
    """
    with services.database.reading() as session:
        return receipts.page(
            session,
            services.vault,
            caller.tenant_id,
            erasure_id,
            model=model,
            ordinal=ordinal,
            limit=limit,
            cursor=cursor,
        )


@router.post("/acknowledge")
def acknowledge_receipts(erasure_id: UUID, caller: CanWriteErasures, services: ServicesOf) -> Acknowledged:
    """Say that the receipts are handed out. Their salts are destroyed: nobody can make them again."""
    with services.database.writing() as session:
        acknowledged = receipts.acknowledge(session, caller.tenant_id, erasure_id)
    if not services.database.forget_deleted_bytes():
        log.warning("destroyed salts are still in the write-ahead log: a reader holds it")
    return acknowledged

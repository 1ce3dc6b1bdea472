"""The dashboard's router. Its pages are not part of the OpenAPI document."""

from fastapi import APIRouter, Request, Response

from app.gateway.dashboard import (
    audit_log_page,
    batch_pages,
    certificate_pages,
    erasure_forms,
    erasure_pages,
    login,
    model_forms,
    model_pages,
    overview,
    paper,
    report_pages,
    search_pages,
)
from app.gateway.dashboard.assets import ASSETS
from app.gateway.dashboard.pages import PageRoute

# Forms come before the pages whose paths have a placeholder in the same position.
PAGE_MODULES = (
    overview,
    login,
    search_pages,
    erasure_forms,
    paper,
    erasure_pages,
    batch_pages,
    certificate_pages,
    model_forms,
    model_pages,
    report_pages,
    audit_log_page,
)
router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/static/{name}")
async def get_asset(request: Request, name: str) -> Response:
    """Return a static file. No session is needed, because the sign-in page uses these files too."""
    return await ASSETS.get_response(name, request.scope)


for module in PAGE_MODULES:
    router.include_router(module.router)

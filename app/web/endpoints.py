"""The dashboard's router; none of it is in the description of the API."""

from fastapi import APIRouter, Request, Response

from app.web import (
    assets,
    batch_pages,
    certificate_pages,
    erasure_pages,
    login,
    model_pages,
    overview,
)
from app.web.pages import PageRoute

PARTS = (overview, login, erasure_pages, batch_pages, certificate_pages, model_pages)
router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/static/{name}")
async def static(request: Request, name: str) -> Response:
    return assets.serve(request, name)


for part in PARTS:
    router.include_router(part.router)

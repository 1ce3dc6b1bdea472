"""Endpoints for the library of representations, and for downloads of a model's graph and tokenizer."""

from typing import Annotated

from fastapi import APIRouter, Path, Response
from fastapi.responses import StreamingResponse
from sqlalchemy import select

from app.db.states import FileKind
from app.db.tables import LibraryRepresentation
from app.gateway.auth.caller import Caller
from app.gateway.auth.guard import CanReadModels, ServicesOf
from app.gateway.json_body import JsonRoute
from app.gateway.models import representations, service
from app.gateway.models.downloads import MEDIA_TYPE, Download, FileDownload, download_responses
from app.gateway.models.schemas import LibraryEntryView, ModelName
from app.gateway.pagination import Cursor, Limit, Page, fetch_page
from app.services import Services
from lethe.certificate.representation import LIBRARY_NAME

router = APIRouter(prefix="/v1", route_class=JsonRoute, tags=["representations"])
JSON = "application/json"
EntryName = Annotated[
    str,
    Path(pattern=LIBRARY_NAME, description="The name of the entry.", examples=["efficientnet-lite0"]),
]


@router.get("/representations")
def list_representations(
    caller: CanReadModels, services: ServicesOf, limit: Limit = 50, cursor: Cursor = None
) -> Page[LibraryEntryView]:
    """List the library: representations that every model of this installation may use, newest first.

    The operator adds them with `lethe representation add`.
    """
    del caller
    with services.database.reading() as session:
        return fetch_page(
            session,
            select(LibraryRepresentation),
            LibraryRepresentation.id,
            limit=limit,
            cursor=cursor,
            describe=representations.describe_entries,
        )


@router.get("/representations/{name}")
def get_library_representation(
    name: EntryName, caller: CanReadModels, services: ServicesOf
) -> LibraryEntryView:
    """Return one representation of the library, with the declaration that a manifest repeats."""
    del caller
    with services.database.reading() as session:
        return representations.describe_entries([representations.get_entry(session, name)])[0]


@router.get(
    "/models/{name}/representation/content",
    response_class=StreamingResponse,
    summary="Download graph",
    responses=download_responses(MEDIA_TYPE),
)
def download_graph(
    name: ModelName, caller: CanReadModels, services: ServicesOf, download: Download
) -> Response:
    """Download the ONNX graph of the model's representation, its own or the library's."""
    return _send(name, caller, services, download, FileKind.REPRESENTATION)


@router.get(
    "/models/{name}/tokenizer/content",
    response_class=StreamingResponse,
    summary="Download tokenizer",
    responses=download_responses(JSON),
)
def download_tokenizer(
    name: ModelName, caller: CanReadModels, services: ServicesOf, download: Download
) -> Response:
    """Download the `tokenizer.json` of the model's representation, its own or the library's."""
    return _send(name, caller, services, download, FileKind.TOKENIZER)


def _send(name: str, caller: Caller, services: Services, download: FileDownload, kind: FileKind) -> Response:
    with services.database.reading() as session:
        file = representations.downloadable_file(session, service.get(session, caller.tenant_id, name), kind)
    if kind == FileKind.TOKENIZER:
        return download.send(services.storage, file, f"{name}-tokenizer.json", media_type=JSON)
    return download.send(services.storage, file, f"{name}-representation.onnx")

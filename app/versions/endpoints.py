from typing import Annotated

from fastapi import APIRouter, Header, Response
from fastapi.responses import StreamingResponse

from app.access.guard import CanReadCheckpoints, CanReadModels, ServicesOf
from app.errors import NotFound
from app.models import service as models
from app.models.schemas import ModelName
from app.versions import repository, service
from app.versions.schemas import VersionNumber, VersionShown

router = APIRouter(prefix="/v1/models/{name}/versions", tags=["versions"])
MEDIA_TYPE = "application/octet-stream"


@router.get("")
def list_versions(name: ModelName, caller: CanReadModels, services: ServicesOf) -> list[VersionShown]:
    """Newest first."""
    with services.database.reading() as session:
        model = models.get(session, caller.tenant_id, name)
        versions = repository.of_model(session, model.id)
        return [VersionShown.model_validate(version, from_attributes=True) for version in versions]


@router.get("/{number}/signature", response_class=Response)
def download_signature(
    name: ModelName, number: VersionNumber, caller: CanReadCheckpoints, services: ServicesOf
) -> Response:
    """`model.sig` of the checkpoint, for the OpenSSF `model_signing` tool; version 0 has none."""
    with services.database.reading() as session:
        version = service.downloadable(session, caller.tenant_id, name, number)
        signature = repository.model_signature(session, version)
    if signature is None:
        raise NotFound("This version is not signed.")
    return Response(signature, media_type="application/vnd.dev.sigstore.bundle.v0.3+json")


@router.get(
    "/{number}/checkpoint",
    response_class=StreamingResponse,
    responses={
        200: {"content": {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}}},
        206: {"content": {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}}},
        304: {"description": "You have it already."},
    },
)
def download_checkpoint(
    name: ModelName,
    number: VersionNumber,
    caller: CanReadCheckpoints,
    services: ServicesOf,
    range: Annotated[str | None, Header()] = None,  # noqa: A002  (the header's name)
    if_range: Annotated[str | None, Header()] = None,
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response:
    """The weights, as safetensors. Superseded versions are gone: 410 names the current one."""
    with services.database.reading() as session:
        version = service.downloadable(session, caller.tenant_id, name, number)
    etag = f'"{version.sha256}"'
    headers = {
        "ETag": etag,
        "Accept-Ranges": "bytes",
        "Repr-Digest": service.repr_digest(version.sha256),
        "Cache-Control": "private, no-cache",
        "Content-Disposition": f'attachment; filename="{name}-v{version.number}.safetensors"',
    }
    if if_none_match is not None and etag in (tag.strip() for tag in if_none_match.split(",")):
        return Response(status_code=304, headers=headers)
    part = service.slice_of(range if if_range in (None, etag) else None, version.size)
    headers["Content-Length"] = str(part.length)
    if part.partial:
        headers["Content-Range"] = f"bytes {part.start}-{part.start + part.length - 1}/{version.size}"
    chunks = services.storage.read(version.path, part.start, part.length)
    return StreamingResponse(chunks, 206 if part.partial else 200, headers, MEDIA_TYPE)

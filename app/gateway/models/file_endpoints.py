"""Endpoints for a model's files: parts, `weights`, `anchor`, `representation` and `tokenizer`.

`PUT` uploads a file, or one piece of it with `Content-Range`. `GET` returns how much has arrived. `DELETE`
removes it. Parts are `dataset/{part}` and `holdout/{part}`.
"""

from collections.abc import Iterable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response

from app.db.states import ImportRole
from app.gateway.auth.guard import CanAdminModels, CanReadModels, ServicesOf
from app.gateway.json_body import JsonRoute
from app.gateway.models import files, service
from app.gateway.models.files import Target, UnfinishedUpload
from app.gateway.models.schemas import (
    ContentRange,
    FileImportRequest,
    ImportRequest,
    ModelName,
    PartName,
    ReprDigest,
    UploadedFile,
    UploadStatus,
)
from app.gateway.uploads import Uploads, binary_body, parse_content_range, parse_repr_digest

router = APIRouter(prefix="/v1/models", route_class=JsonRoute, tags=["models"])
PARQUET, SAFETENSORS = "application/vnd.apache.parquet", "application/octet-stream"
ONNX, JSON = "application/octet-stream", "application/json"
_PIECE_STORED: dict[int | str, dict[str, Any]] = {
    202: {"model": UploadStatus, "description": "The piece is stored. Send the next one."}
}


class FileUpload:
    """A `PUT` of a file. The endpoint says what the file is for."""

    def __init__(
        self,
        name: ModelName,
        request: Request,
        response: Response,
        caller: CanAdminModels,
        services: ServicesOf,
        content_range: ContentRange = None,
        repr_digest: ReprDigest = None,
    ) -> None:
        self.name, self.caller, self.services = name, caller, services
        self.uploads: Uploads = request.state.uploads
        self.request, self.response = request, response
        self.piece, self.sha256 = parse_content_range(content_range), parse_repr_digest(repr_digest)

    async def store(self, target: Target) -> UploadedFile | UploadStatus:
        """Store the body in an upload thread."""
        body = self.uploads.chunks(self.request)
        return await self.uploads.run(self.caller.tenant_id, lambda: self._store(target, body))

    def _store(self, target: Target, body: Iterable[bytes]) -> UploadedFile | UploadStatus:
        where = (self.services, self.caller.tenant_id, self.name, target)
        if self.piece is None:
            stored = files.store(*where, body, self.sha256)
            return UploadedFile(sha256=stored.sha256, size=stored.size)
        outcome = files.store_piece(*where, self.piece, body, self.sha256)
        if isinstance(outcome, UnfinishedUpload):
            self.response.status_code = 202
            return UploadStatus(complete=False, received=outcome.received, total=outcome.total, sha256=None)
        return UploadedFile(sha256=outcome.sha256, size=outcome.size)


class FileQuery:
    """A `GET` of a file's upload status."""

    def __init__(self, name: ModelName, caller: CanReadModels, services: ServicesOf) -> None:
        self.name, self.caller, self.services = name, caller, services

    def status(self, target: Target) -> UploadStatus:
        """Return how much of the file has arrived."""
        with self.services.database.reading() as session:
            status = files.status(session, self.caller.tenant_id, self.name, target)
        return UploadStatus.model_validate(status, from_attributes=True)


class FileRemoval:
    """A `DELETE` of a file."""

    def __init__(self, name: ModelName, caller: CanAdminModels, services: ServicesOf) -> None:
        self.name, self.caller, self.services = name, caller, services

    def remove(self, target: Target) -> None:
        """Remove the file."""
        files.remove(self.services, self.caller.tenant_id, self.name, target)


Put = Annotated[FileUpload, Depends()]
Get = Annotated[FileQuery, Depends()]
Delete = Annotated[FileRemoval, Depends()]


@router.put(
    "/{name}/dataset/{part}", status_code=201, responses=_PIECE_STORED, openapi_extra=binary_body(PARQUET)
)
async def put_dataset_part(part: PartName, put: Put) -> UploadedFile | UploadStatus:
    """Upload training rows: one Parquet file with the columns `subject_id`, `label` and `features`.

    With a representation of images or texts, the column is `image` or `text` instead of `features`. On a
    ready model the part is staged until you append it.
    """
    return await put.store(Target("dataset", part))


@router.get("/{name}/dataset/{part}")
def get_dataset_part(part: PartName, get: Get) -> UploadStatus:
    """Return how much of a training part has arrived."""
    return get.status(Target("dataset", part))


@router.delete("/{name}/dataset/{part}", status_code=204)
def delete_dataset_part(part: PartName, delete: Delete) -> None:
    """Remove a training part that is not in use yet."""
    delete.remove(Target("dataset", part))


@router.post("/{name}/dataset/import", status_code=202)
def import_dataset_part(
    name: ModelName, body: ImportRequest, caller: CanAdminModels, services: ServicesOf
) -> None:
    """Let the worker copy a training part from a storage URI when it validates the model or appends.

    The operator must have allowed the location.
    """
    service.plan_import(services, caller.tenant_id, name, ImportRole.TRAIN, body.uri, body.part)


@router.put(
    "/{name}/holdout/{part}", status_code=201, responses=_PIECE_STORED, openapi_extra=binary_body(PARQUET)
)
async def put_holdout_part(part: PartName, put: Put) -> UploadedFile | UploadStatus:
    """Upload rows that are used for evaluation only.

    The column `subject_id` is optional. People named in it can be erased from the holdout too.
    """
    return await put.store(Target("holdout", part))


@router.get("/{name}/holdout/{part}")
def get_holdout_part(part: PartName, get: Get) -> UploadStatus:
    """Return how much of a holdout part has arrived."""
    return get.status(Target("holdout", part))


@router.delete("/{name}/holdout/{part}", status_code=204)
def delete_holdout_part(part: PartName, delete: Delete) -> None:
    """Remove a holdout part. Possible only before the model is validated."""
    delete.remove(Target("holdout", part))


@router.post("/{name}/holdout/import", status_code=202)
def import_holdout_part(
    name: ModelName, body: ImportRequest, caller: CanAdminModels, services: ServicesOf
) -> None:
    """Let the worker copy a holdout part from a storage URI when it validates the model.

    The operator must have allowed the location.
    """
    service.plan_import(services, caller.tenant_id, name, ImportRole.HOLDOUT, body.uri, body.part)


@router.put(
    "/{name}/weights", status_code=201, responses=_PIECE_STORED, openapi_extra=binary_body(SAFETENSORS)
)
async def put_weights(put: Put) -> UploadedFile | UploadStatus:
    """Upload trained weights as safetensors. Without them, the service trains the model."""
    return await put.store(Target("weights"))


@router.get("/{name}/weights")
def get_weights(get: Get) -> UploadStatus:
    """Return how much of the weights has arrived. After registration the weights are version 0."""
    return get.status(Target("weights"))


@router.delete("/{name}/weights", status_code=204)
def delete_weights(delete: Delete) -> None:
    """Remove the uploaded weights. The service will then train the model."""
    delete.remove(Target("weights"))


@router.put(
    "/{name}/anchor", status_code=201, responses=_PIECE_STORED, openapi_extra=binary_body(SAFETENSORS)
)
async def put_anchor(put: Put) -> UploadedFile | UploadStatus:
    """Upload the anchor: a public point in the shape of the weights that no erasable row has influenced."""
    return await put.store(Target("anchor"))


@router.get("/{name}/anchor")
def get_anchor(get: Get) -> UploadStatus:
    """Return how much of the anchor has arrived."""
    return get.status(Target("anchor"))


@router.delete("/{name}/anchor", status_code=204)
def delete_anchor(delete: Delete) -> None:
    """Remove the anchor. The anchor is then zero."""
    delete.remove(Target("anchor"))


@router.put(
    "/{name}/representation", status_code=201, responses=_PIECE_STORED, openapi_extra=binary_body(ONNX)
)
async def put_representation(put: Put) -> UploadedFile | UploadStatus:
    """Upload the graph of the model's representation, as ONNX. The manifest must declare it.

    A representation of the library has its graph already.
    """
    return await put.store(Target("representation"))


@router.get("/{name}/representation")
def get_representation(get: Get) -> UploadStatus:
    """Return how much of the graph has arrived."""
    return get.status(Target("representation"))


@router.delete("/{name}/representation", status_code=204)
def delete_representation(delete: Delete) -> None:
    """Remove the graph that was uploaded or is to be imported. Possible only before validation."""
    delete.remove(Target("representation"))


@router.post("/{name}/representation/import", status_code=202)
def import_representation(
    name: ModelName, body: FileImportRequest, caller: CanAdminModels, services: ServicesOf
) -> None:
    """Let the worker copy the graph from a storage URI when it validates the model.

    The operator must have allowed the location.
    """
    service.plan_import(services, caller.tenant_id, name, ImportRole.REPRESENTATION, body.uri)


@router.put("/{name}/tokenizer", status_code=201, responses=_PIECE_STORED, openapi_extra=binary_body(JSON))
async def put_tokenizer(put: Put) -> UploadedFile | UploadStatus:
    """Upload the `tokenizer.json` of a representation of text."""
    return await put.store(Target("tokenizer"))


@router.get("/{name}/tokenizer")
def get_tokenizer(get: Get) -> UploadStatus:
    """Return how much of the tokenizer has arrived."""
    return get.status(Target("tokenizer"))


@router.delete("/{name}/tokenizer", status_code=204)
def delete_tokenizer(delete: Delete) -> None:
    """Remove the tokenizer that was uploaded or is to be imported. Possible only before validation."""
    delete.remove(Target("tokenizer"))


@router.post("/{name}/tokenizer/import", status_code=202)
def import_tokenizer(
    name: ModelName, body: FileImportRequest, caller: CanAdminModels, services: ServicesOf
) -> None:
    """Let the worker copy the tokenizer from a storage URI when it validates the model.

    The operator must have allowed the location.
    """
    service.plan_import(services, caller.tenant_id, name, ImportRole.TOKENIZER, body.uri)

"""Files of a model, each at a place of its own: `weights`, `anchor`, `dataset/{part}`, `holdout/{part}`.

`PUT` sends a file, or with `Content-Range` one piece of it; `GET` says how much is here; `DELETE` takes it
back.
"""

from collections.abc import Iterable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response

from app.access.guard import CanAdminModels, CanReadModels, ServicesOf
from app.db.states import PartRole
from app.models import files, service
from app.models.files import Partial, Target
from app.models.schemas import (
    ContentRange,
    ImportRequest,
    ModelName,
    PartName,
    ReprDigest,
    Transfer,
    Uploaded,
)
from app.uploads import Uploads, binary_body, piece_of, wanted_sha256

router = APIRouter(prefix="/v1/models", tags=["models"])
PARQUET, SAFETENSORS = "application/vnd.apache.parquet", "application/octet-stream"
_TAKEN: dict[int | str, dict[str, Any]] = {
    202: {"model": Transfer, "description": "The piece is here; more is expected."}
}


class Sending:
    """A `PUT`, ready to be stored once it is known what it is for."""

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
        self.piece, self.wanted = piece_of(content_range), wanted_sha256(repr_digest)

    async def store(self, target: Target) -> Uploaded | Transfer:
        return await self.uploads.run(lambda: self._store(target, self.uploads.chunks(self.request)))

    def _store(self, target: Target, body: Iterable[bytes]) -> Uploaded | Transfer:
        where = (self.services, self.caller.tenant_id, self.name, target)
        if self.piece is None:
            stored = files.store(*where, body, self.wanted)
            return Uploaded(sha256=stored.sha256, size=stored.size)
        outcome = files.store_piece(*where, self.piece, body, self.wanted)
        if isinstance(outcome, Partial):
            self.response.status_code = 202
            return Transfer(complete=False, received=outcome.received, total=outcome.total, sha256=None)
        return Uploaded(sha256=outcome.sha256, size=outcome.size)


class Looking:
    def __init__(self, name: ModelName, caller: CanReadModels, services: ServicesOf) -> None:
        self.name, self.caller, self.services = name, caller, services

    def status(self, target: Target) -> Transfer:
        with self.services.database.reading() as session:
            found = files.status(session, self.caller.tenant_id, self.name, target)
        return Transfer.model_validate(found, from_attributes=True)


class Removing:
    def __init__(self, name: ModelName, caller: CanAdminModels, services: ServicesOf) -> None:
        self.name, self.caller, self.services = name, caller, services

    def remove(self, target: Target) -> None:
        files.remove(self.services, self.caller.tenant_id, self.name, target)


Put = Annotated[Sending, Depends()]
Get = Annotated[Looking, Depends()]
Delete = Annotated[Removing, Depends()]


@router.put("/{name}/dataset/{part}", status_code=201, responses=_TAKEN, openapi_extra=binary_body(PARQUET))
async def put_dataset_part(part: PartName, put: Put) -> Uploaded | Transfer:
    """Send one Parquet file with the columns subject_id, label and features.

    A model that is ready keeps it aside until its rows are appended.
    """
    return await put.store(Target("dataset", part))


@router.get("/{name}/dataset/{part}")
def get_dataset_part(part: PartName, get: Get) -> Transfer:
    """How much of the file is here."""
    return get.status(Target("dataset", part))


@router.delete("/{name}/dataset/{part}", status_code=204)
def delete_dataset_part(part: PartName, delete: Delete) -> None:
    """Take a part back that is not in use yet."""
    delete.remove(Target("dataset", part))


@router.post("/{name}/dataset/import", status_code=202)
def import_dataset_part(
    name: ModelName, body: ImportRequest, caller: CanAdminModels, services: ServicesOf
) -> None:
    """Have the worker copy a part from a storage URI when it validates or appends.

    Only from places that the operator allowed.
    """
    service.plan_import(services, caller.tenant_id, name, PartRole.TRAIN, body.part, body.uri)


@router.put("/{name}/holdout/{part}", status_code=201, responses=_TAKEN, openapi_extra=binary_body(PARQUET))
async def put_holdout_part(part: PartName, put: Put) -> Uploaded | Transfer:
    """Send rows for evaluation only. The column subject_id is optional; whoever it names can be erased."""
    return await put.store(Target("holdout", part))


@router.get("/{name}/holdout/{part}")
def get_holdout_part(part: PartName, get: Get) -> Transfer:
    """How much of the file is here."""
    return get.status(Target("holdout", part))


@router.delete("/{name}/holdout/{part}", status_code=204)
def delete_holdout_part(part: PartName, delete: Delete) -> None:
    """Take a part back before the model is validated."""
    delete.remove(Target("holdout", part))


@router.post("/{name}/holdout/import", status_code=202)
def import_holdout_part(
    name: ModelName, body: ImportRequest, caller: CanAdminModels, services: ServicesOf
) -> None:
    """Have the worker copy a holdout part from a storage URI when it validates."""
    service.plan_import(services, caller.tenant_id, name, PartRole.HOLDOUT, body.part, body.uri)


@router.put("/{name}/weights", status_code=201, responses=_TAKEN, openapi_extra=binary_body(SAFETENSORS))
async def put_weights(put: Put) -> Uploaded | Transfer:
    """Send trained weights, as safetensors; without them the service trains the model."""
    return await put.store(Target("weights"))


@router.get("/{name}/weights")
def get_weights(get: Get) -> Transfer:
    """How much of the file is here; after registration the weights are version 0."""
    return get.status(Target("weights"))


@router.delete("/{name}/weights", status_code=204)
def delete_weights(delete: Delete) -> None:
    """Take the weights back: the service then trains the model."""
    delete.remove(Target("weights"))


@router.put("/{name}/anchor", status_code=201, responses=_TAKEN, openapi_extra=binary_body(SAFETENSORS))
async def put_anchor(put: Put) -> Uploaded | Transfer:
    """Send the anchor: a public point, shaped like the weights, that no erasable row has shaped."""
    return await put.store(Target("anchor"))


@router.get("/{name}/anchor")
def get_anchor(get: Get) -> Transfer:
    """How much of the file is here."""
    return get.status(Target("anchor"))


@router.delete("/{name}/anchor", status_code=204)
def delete_anchor(delete: Delete) -> None:
    """Take the anchor back: it is zero then."""
    delete.remove(Target("anchor"))

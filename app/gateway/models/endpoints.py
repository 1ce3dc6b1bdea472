from typing import Annotated

from fastapi import APIRouter, Query, Response

from app.access.guard import CanAdminModels, CanReadModels, ServicesOf
from app.db.tables import Model
from app.models import repository, retirement, service
from app.models.schemas import (
    Appending,
    Flushed,
    Holding,
    ManifestPatch,
    ModelName,
    ModelRequest,
    ModelShown,
)
from app.paging import Cursor, Limit, Page, paged

router = APIRouter(prefix="/v1/models", tags=["models"])


@router.post("", status_code=201)
def create_model(
    body: ModelRequest, response: Response, caller: CanAdminModels, services: ServicesOf
) -> ModelShown:
    """Describe a model. Then send its data, and weights if it is trained already; then validate it."""
    with services.database.writing() as session:
        model = service.create(session, caller.tenant_id, body)
        response.headers["Location"] = f"/v1/models/{model.name}"
        return service.shown(session, model)


@router.get("")
def list_models(
    caller: CanReadModels, services: ServicesOf, limit: Limit = 50, cursor: Cursor = None
) -> Page[ModelShown]:
    """Newest first."""
    with services.database.reading() as session:
        return paged(
            session,
            repository.of_tenant(caller.tenant_id),
            Model.id,
            limit=limit,
            cursor=cursor,
            show=lambda model: service.shown(session, model),
        )


@router.get("/{name}")
def get_model(name: ModelName, caller: CanReadModels, services: ServicesOf) -> ModelShown:
    """State, policy, what registration measured, and how many subjects wait."""
    with services.database.reading() as session:
        return service.shown(session, service.get(session, caller.tenant_id, name))


@router.patch("/{name}")
def change_model(
    name: ModelName, body: ManifestPatch, caller: CanAdminModels, services: ServicesOf
) -> ModelShown:
    """Change the policy by JSON Merge Patch; a sealed batch keeps the one it was sealed under.

    Before registration the rest of the manifest can be mended the same way.
    """
    with services.database.writing() as session:
        patch = body.model_dump(exclude_unset=True)
        return service.shown(session, service.change(session, caller.tenant_id, name, patch))


@router.delete("/{name}")
def retire_model(name: ModelName, caller: CanAdminModels, services: ServicesOf) -> ModelShown:
    """Retire, and delete data and checkpoints. Certificates stay.

    Refused while an erasure waits, runs or has failed. A model that never became ready may be retired all
    the same: erasures that wait for it end with its data.
    """
    with services.database.writing() as session:
        model = service.shown(session, retirement.retire(session, caller.tenant_id, name))
    retirement.delete_files(services, model.id)
    return model


@router.get("/{name}/dataset")
def list_dataset(name: ModelName, caller: CanReadModels, services: ServicesOf) -> list[Holding]:
    """The parts the model holds, those that wait to be appended, and those still to be imported."""
    with services.database.reading() as session:
        return service.holdings(session, service.get(session, caller.tenant_id, name))


@router.post("/{name}/validate", status_code=202)
def validate_model(
    name: ModelName, response: Response, caller: CanAdminModels, services: ServicesOf
) -> ModelShown:
    """Start registration: a worker checks data and weights, and answers ready or rejected."""
    with services.database.writing() as session:
        model = service.start_validation(session, caller.tenant_id, name)
        response.headers["Location"] = f"/v1/models/{name}"
        response.headers["Retry-After"] = "1"
        return service.shown(session, model)


@router.post("/{name}/append", status_code=202)
def append_rows(
    name: ModelName, response: Response, caller: CanAdminModels, services: ServicesOf
) -> Appending:
    """Add the parts sent since registration to the training data, fit, and publish the next version.

    The release is noised, certified and counted like any other: it started from a version that those
    erased before had shaped.
    """
    with services.database.writing() as session:
        batch = service.start_append(session, caller.tenant_id, name)
        response.headers["Location"] = f"/v1/batches/{batch.id}"
        response.headers["Retry-After"] = "1"
        return Appending(batch_id=batch.id)


@router.post("/{name}/flush", status_code=202)
def flush_model(
    name: ModelName,
    caller: CanAdminModels,
    services: ServicesOf,
    force: Annotated[
        bool, Query(description="Also with fewer people than the policy's `min_batch_subjects`.")
    ] = False,
) -> Flushed:
    """Seal what waits now instead of waiting for count, age or deadline.

    With fewer people than the policy's `min_batch_subjects` it is refused, unless `force` is true.
    """
    with services.database.writing() as session:
        waiting = service.request_flush(session, caller.tenant_id, name, force=force)
        return Flushed(waiting_subjects=waiting)

"""Endpoints for models."""

from typing import Annotated

from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse

from app.db.states import ModelState
from app.db.tables import Model
from app.gateway.auth.guard import CanAdminModels, CanReadModels, ServicesOf
from app.gateway.event_stream import STREAM_RESPONSES, Changes
from app.gateway.json_body import JsonRoute
from app.gateway.models import repository, service
from app.gateway.models.schemas import (
    AppendStarted,
    DatasetPartView,
    FlushResult,
    ManifestPatch,
    ModelName,
    ModelRequest,
    ModelView,
)
from app.gateway.pagination import Cursor, Limit, Page, fetch_page
from app.gateway.wake_up import WAKES_DISPATCHER

router = APIRouter(prefix="/v1/models", route_class=JsonRoute, tags=["models"])


@router.post("", status_code=201)
def create_model(
    body: ModelRequest, response: Response, caller: CanAdminModels, services: ServicesOf
) -> ModelView:
    """Create a model from a manifest.

    Next, upload its data, and its weights if it is already trained. Then validate it.
    """
    with services.database.writing() as session:
        model = service.create(session, caller.tenant_id, body, quota=services.settings.max_models_per_tenant)
        response.headers["Location"] = f"/v1/models/{model.name}"
        return service.describe_model(session, model)


@router.get("")
def list_models(
    caller: CanReadModels, services: ServicesOf, limit: Limit = 50, cursor: Cursor = None
) -> Page[ModelView]:
    """List your tenant's models, newest first."""
    with services.database.reading() as session:
        return fetch_page(
            session,
            repository.of_tenant(caller.tenant_id),
            Model.id,
            limit=limit,
            cursor=cursor,
            describe=lambda models: service.describe_models(session, models),
        )


@router.get("/{name}")
def get_model(name: ModelName, caller: CanReadModels, services: ServicesOf) -> ModelView:
    """Return a model: its state, policy, registration report, and how many people wait for erasure."""
    with services.database.reading() as session:
        return service.describe_model(session, service.get(session, caller.tenant_id, name))


@router.get("/{name}/changes", response_class=StreamingResponse, responses=STREAM_RESPONSES)
async def follow_model(
    name: ModelName,
    caller: CanReadModels,
    services: ServicesOf,
    changes: Changes,
) -> StreamingResponse:
    """Stream a model as server-sent events: as it is now, and after every change, until it is retired."""
    return await changes.follow(
        caller.tenant_id,
        lambda: get_model(name, caller, services),
        lambda model: model.state == ModelState.RETIRED,
    )


@router.patch("/{name}")
def change_model(
    name: ModelName, body: ManifestPatch, caller: CanAdminModels, services: ServicesOf
) -> ModelView:
    """Change the policy by JSON Merge Patch. A batch keeps the policy it was sealed under.

    Before registration you can change the rest of the manifest in the same way.
    """
    with services.database.writing() as session:
        patch = body.model_dump(exclude_unset=True)
        return service.describe_model(session, service.change(session, caller.tenant_id, name, patch))


@router.delete("/{name}")
def retire_model(name: ModelName, caller: CanAdminModels, services: ServicesOf) -> ModelView:
    """Retire a model and delete its data and weights. Its certificates remain.

    Refused while an erasure is waiting, running or failed. A model that never became ready can be retired
    anyway: erasures that wait for it are completed, because its data is deleted.
    """
    with services.database.writing() as session:
        model = service.describe_model(session, service.retire(session, caller.tenant_id, name))
    service.delete_files(services, model.id)
    return model


@router.get("/{name}/dataset", summary="List dataset parts")
def list_dataset(name: ModelName, caller: CanReadModels, services: ServicesOf) -> list[DatasetPartView]:
    """List the parts of a model's data: those in use, those staged, and those still to be imported."""
    with services.database.reading() as session:
        return service.list_parts(session, service.get(session, caller.tenant_id, name))


@router.post("/{name}/validate", status_code=202, dependencies=[WAKES_DISPATCHER])
def validate_model(
    name: ModelName, response: Response, caller: CanAdminModels, services: ServicesOf
) -> ModelView:
    """Start registration. A worker checks data and weights, and trains the model if it has no weights.

    The model's state then becomes `ready` or `rejected`.
    """
    with services.database.writing() as session:
        model = service.start_validation(session, caller.tenant_id, name)
        response.headers["Location"] = f"/v1/models/{name}"
        response.headers["Retry-After"] = "1"
        return service.describe_model(session, model)


@router.post("/{name}/append", status_code=202, dependencies=[WAKES_DISPATCHER])
def append_rows(
    name: ModelName, response: Response, caller: CanAdminModels, services: ServicesOf
) -> AppendStarted:
    """Add the parts uploaded since registration to the training data, fit the model, and publish a version.

    The release is noised, certified and counted like any other, because it starts from a version that people
    erased earlier have influenced.
    """
    with services.database.writing() as session:
        batch = service.start_append(session, caller.tenant_id, name)
        response.headers["Location"] = f"/v1/batches/{batch.id}"
        response.headers["Retry-After"] = "1"
        return AppendStarted(batch_id=batch.id)


@router.post("/{name}/flush", status_code=202, dependencies=[WAKES_DISPATCHER])
def flush_model(
    name: ModelName,
    caller: CanAdminModels,
    services: ServicesOf,
    force: Annotated[
        bool,
        Query(description="Seal the batch even with fewer people than the policy's `min_batch_subjects`."),
    ] = False,
) -> FlushResult:
    """Seal the waiting erasures in a batch now, without waiting for the batch size, its age or a deadline.

    Refused with fewer people than the policy's `min_batch_subjects`, unless `force` is true.
    """
    with services.database.writing() as session:
        waiting = service.request_flush(session, caller.tenant_id, name, force=force)
        return FlushResult(waiting_subjects=waiting)

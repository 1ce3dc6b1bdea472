from fastapi import APIRouter, Request, Response

from app.access.guard import CanAdminModels, CanReadModels, ServicesOf
from app.db.tables import Model
from app.models import repository, service
from app.models.schemas import Flushed, ModelName, ModelRequest, ModelShown, PartName, Uploaded
from app.paging import Cursor, Limit, Page, paged
from app.uploads import binary_body, body_chunks

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


@router.put(
    "/{name}/dataset/{part}", status_code=201, openapi_extra=binary_body("application/vnd.apache.parquet")
)
def put_dataset_part(
    name: ModelName, part: PartName, request: Request, caller: CanAdminModels, services: ServicesOf
) -> Uploaded:
    """Send one Parquet file with the columns subject_id, label and features."""
    stored = service.store_part(services, caller.tenant_id, name, part, body_chunks(request))
    return Uploaded(sha256=stored.sha256, size=stored.size)


@router.put("/{name}/weights", status_code=201, openapi_extra=binary_body("application/octet-stream"))
def put_weights(name: ModelName, request: Request, caller: CanAdminModels, services: ServicesOf) -> Uploaded:
    """Send trained weights; without them the service trains the model."""
    stored = service.store_weights(services, caller.tenant_id, name, body_chunks(request))
    return Uploaded(sha256=stored.sha256, size=stored.size)


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


@router.post("/{name}/flush", status_code=202)
def flush_model(name: ModelName, caller: CanAdminModels, services: ServicesOf) -> Flushed:
    """Seal what waits now instead of waiting for count, age or deadline."""
    with services.database.writing() as session:
        return Flushed(waiting_subjects=service.request_flush(session, caller.tenant_id, name))

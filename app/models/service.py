"""Models: their manifest, their own copy of the data, and the start of registration."""

from collections.abc import Iterable
from uuid import UUID

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app.bootstrap import Services
from app.clock import new_id, now
from app.db import paths, transitions
from app.db.manifest import Manifest
from app.db.states import ModelState
from app.db.tables import DatasetPart, Model
from app.errors import Conflict, NotFound
from app.models import repository
from app.models.schemas import ModelRequest, ModelShown
from app.storage import Stored


def get(session: Session, tenant_id: UUID, name: str, *, lock: bool = False) -> Model:
    model = repository.by_name(session, tenant_id, name, lock=lock)
    if model is None:
        raise NotFound("There is no such model.")
    return model


def shown(session: Session, model: Model) -> ModelShown:
    manifest = Manifest.model_validate(model.manifest)
    waiting, _, _ = transitions.waiting_subjects(session, model.id)
    return ModelShown(
        id=model.id,
        name=model.name,
        state=ModelState(model.state),
        manifest=manifest,
        sigma=manifest.policy.sigma,
        generation=model.generation,
        reasons=model.reasons,
        report=model.report,
        waiting_subjects=waiting,
        created_at=model.created_at,
    )


def create(session: Session, tenant_id: UUID, body: ModelRequest) -> Model:
    model = Model(
        id=new_id(),
        tenant_id=tenant_id,
        name=body.name,
        manifest=body.manifest.model_dump(mode="json", by_alias=True),
        created_at=now(),
    )
    session.add(model)
    try:
        session.flush()
    except IntegrityError:
        raise Conflict(f"There is a model {body.name} already.") from None
    return model


def store_part(services: Services, tenant_id: UUID, name: str, part: str, chunks: Iterable[bytes]) -> Stored:
    """Copy one Parquet file into Lethe's own storage; sending the same part again replaces it."""
    with services.database.reading() as session:
        model_id = _uploading(get(session, tenant_id, name)).id
    stored = services.storage.write(paths.uploaded_part(model_id, part, new_id()), chunks)
    with services.database.writing() as session:
        _uploading(get(session, tenant_id, name, lock=True))
        replaced = _part_named(session, model_id, part)
        session.add(
            DatasetPart(
                model_id=model_id,
                path=stored.path,
                sha256=stored.sha256,
                size=stored.size,
                first_generation=0,
            )
        )
        if replaced is not None:
            session.delete(replaced)
    if replaced is not None:
        services.storage.delete(replaced.path)
    return stored


def store_weights(services: Services, tenant_id: UUID, name: str, chunks: Iterable[bytes]) -> Stored:
    with services.database.reading() as session:
        model_id = _uploading(get(session, tenant_id, name)).id
    return services.storage.write(paths.uploaded_weights(model_id), chunks)


def start_validation(session: Session, tenant_id: UUID, name: str) -> Model:
    model = _uploading(get(session, tenant_id, name, lock=True))
    if not repository.has_parts(session, model.id):
        raise Conflict("The model has no data yet; send at least one dataset part first.")
    transitions.start_validation(session, model, now())
    return model


def request_flush(session: Session, tenant_id: UUID, name: str) -> int:
    """Seal what waits now, without regard to count or age."""
    model = get(session, tenant_id, name, lock=True)
    waiting, _, _ = transitions.waiting_subjects(session, model.id)
    model.flush_requested = waiting > 0
    return waiting


def _part_named(session: Session, model_id: UUID, part: str) -> DatasetPart | None:
    for existing in repository.parts(session, model_id):
        if existing.path.startswith(paths.part_prefix(model_id, part)):
            return existing
    return None


def _uploading(model: Model) -> Model:
    if model.state not in (ModelState.UPLOADING, ModelState.REJECTED):
        raise Conflict(f"The model is {model.state}; files are taken only before it is validated.")
    return model

"""The end of a model: its data goes with it; whoever asks afterwards can be told that none is held."""

from uuid import UUID

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from app.bootstrap import Services
from app.clock import now
from app.db import paths, transitions
from app.db.states import ModelState, TaskState, VersionState
from app.db.tables import (
    DatasetImport,
    DatasetPart,
    Job,
    Model,
    ModelFile,
    Suppression,
    Task,
    Upload,
    Version,
)
from app.errors import Conflict
from app.models.service import get

_NEVER_READY = (ModelState.UPLOADING, ModelState.REJECTED)


def retire(session: Session, tenant_id: UUID, name: str) -> Model:
    """Retired twice is retired. Nobody who waits to be erased may be forgotten on the way."""
    model = get(session, tenant_id, name, lock=True)
    if model.state == ModelState.VALIDATING:
        raise Conflict("The model is being validated; retire it when that is done.")
    if model.state in _NEVER_READY:
        transitions.complete_unreached(session, model, now())
    _require_nobody_waits(session, model)
    transitions.retire_model(session, model)
    for table in (DatasetPart, ModelFile, Upload, DatasetImport, Suppression):
        session.execute(delete(table).where(table.model_id == model.id))
    session.execute(update(Version).where(Version.model_id == model.id).values(state=VersionState.PURGED))
    return model


def delete_files(services: Services, model_id: UUID) -> None:
    """After the commit, and safe to repeat; what a crash leaves is swept with the orphans."""
    with services.database.reading() as session:
        jobs = session.scalars(select(Job.id).where(Job.model_id == model_id)).all()
    for folder in [paths.uploaded(model_id), *(paths.attempts(job_id) for job_id in jobs)]:
        services.storage.delete(folder)
    services.database.forget_deleted_bytes()


def _require_nobody_waits(session: Session, model: Model) -> None:
    waiting, _, _ = transitions.waiting_requests(session, model.id)
    if waiting:
        raise Conflict("Erasures wait for this model; flush and complete, or withdraw them first.")
    if transitions.has_open_batch(session, model.id):
        raise Conflict("A batch of this model is under way; retire it when that has ended.")
    failed = select(Task.id).where(Task.model_id == model.id, Task.state == TaskState.FAILED)
    if session.scalar(failed.limit(1)) is not None:
        raise Conflict("An erasure failed on this model; have its batch tried again first.")

"""Beside a model's generations: imports to bring in, uploads that came to nothing, the suppressed."""

from datetime import timedelta
from uuid import UUID

from sqlalchemy import delete, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from app.clock import new_id, now
from app.db import paths
from app.db.states import ModelState
from app.db.tables import DatasetImport, DatasetPart, ModelFile, Suppression, Upload
from app.storage import Stored
from app.vault import Vault
from certificate.commitment import normalise_identifier
from worker.loading import datasets, imports
from worker.loading.imports import ImportFailed
from worker.pipeline.context import Context

UPLOAD_LIFE = timedelta(hours=24)  # an upload that nobody goes on with
_MANY = 1000


def bring_in(context: Context) -> list[str]:
    """Copy what is to be imported; what could not be had, as reasons.

    Every attempt writes a file of its own, announced like an upload: one that lost its token changes nothing
    that another has recorded, and what it leaves is swept.
    """
    with context.services.database.reading() as session:
        planned = session.scalars(
            select(DatasetImport).where(DatasetImport.model_id == context.model.id).order_by(DatasetImport.id)
        ).all()
    problems = []
    for entry in planned:
        with context.writing() as session:
            upload = Upload(
                id=new_id(), model_id=context.model.id, target=f"import/{entry.role}/{entry.name}"
            )
            session.add(upload)
        target = paths.upload(context.model.id, upload.id)
        stored = None
        try:
            stored = imports.copy(context.services.settings, context.services.storage, entry.uri, target)
        except ImportFailed as problem:
            problems.append(f"{entry.role} {entry.name}: not imported, {problem}")
        with context.writing() as session:
            session.execute(delete(Upload).where(Upload.id == upload.id))
            if stored is not None:
                _record(context, session, entry, stored)
    return problems


def _record(context: Context, session: Session, entry: DatasetImport, stored: Stored) -> None:
    session.add(
        DatasetPart(
            model_id=context.model.id,
            name=entry.name,
            role=entry.role,
            path=stored.path,
            sha256=stored.sha256,
            size=stored.size,
            first_generation=None if context.model.state == ModelState.READY else 0,
        )
    )
    session.execute(delete(DatasetImport).where(DatasetImport.id == entry.id))


def sweep_uploads(context: Context) -> None:
    """Delete files that were sent and are recorded nowhere: of crashes, and of clients that went away.

    Listed before SQL is asked: an upload's row comes before its file, so a file without one is nobody's.
    """
    storage, model_id = context.services.storage, context.model.id
    found = storage.list(paths.uploaded(model_id))
    with context.writing() as session:
        session.execute(
            delete(Upload).where(Upload.model_id == model_id, Upload.touched_at < now() - UPLOAD_LIFE)
        )
        under_way = set(session.scalars(select(Upload.id).where(Upload.model_id == model_id)))
        recorded = {
            *session.scalars(select(DatasetPart.path).where(DatasetPart.model_id == model_id)),
            *session.scalars(select(ModelFile.path).where(ModelFile.model_id == model_id)),
        }
    for path in found:
        upload = _upload_of(path)
        if upload is not None and path not in recorded and upload not in under_way:
            storage.delete(path)


def _upload_of(path: str) -> UUID | None:
    """datasets/{model}/{upload}, its .chunks/{start}, or a draft of either; None: not Lethe's."""
    try:
        return UUID(path.split("/")[2].partition(".")[0])
    except ValueError:  # a file system keeps its own there, such as .nfs… for what is deleted while open
        return None


def suppress(context: Context, session: Session, subjects: list[str]) -> None:
    """Keep a keyed hash of each; whoever is on the list already stays."""
    insert = sqlite.insert if session.get_bind().dialect.name == "sqlite" else postgresql.insert
    vault, model_id = context.services.vault, context.model.id
    rows = [{"model_id": model_id, "subject_hash": _hash(vault, model_id, subject)} for subject in subjects]
    for start in range(0, len(rows), _MANY):
        session.execute(insert(Suppression).on_conflict_do_nothing(), rows[start : start + _MANY])


def suppressed_in(context: Context, path: str) -> set[str]:
    """Return which subjects of this part are on the model's suppression list, in whatever Unicode form.

    Lists from before identifiers were normalised hold the forms that were sent: both are looked for.
    """
    with context.services.database.reading() as session:
        listed = set(
            session.scalars(select(Suppression.subject_hash).where(Suppression.model_id == context.model.id))
        )
    if not listed:
        return set()
    vault, model_id = context.services.vault, context.model.id
    return {
        subject
        for subject in datasets.subjects(context.services.storage, path)
        if {_hash(vault, model_id, normalise_identifier(subject)), _hash(vault, model_id, subject)} & listed
    }


def _hash(vault: Vault, model_id: UUID, subject: str) -> bytes:
    """Bound to the model: two models' lists cannot be compared with each other."""
    return vault.keyed_hash(f"{model_id}/{subject}", purpose="suppression list")

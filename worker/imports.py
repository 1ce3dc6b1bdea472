"""Files on their way into a model: those imported from a URI, and uploads that were never finished."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from typing import IO
from uuid import UUID

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from app.core import import_roots, logging
from app.core.clock import new_id, now
from app.core.settings import Settings
from app.core.storage import CHUNK, Storage, StorageError, Stored, open_uri
from app.db import paths
from app.db.states import PART_IMPORTS, ImportRole, ModelState
from app.db.tables import DatasetImport, DatasetPart, Model, ModelFile, Tenant, Upload
from worker.context import JobContext

log = logging.get_logger("imports")
UPLOAD_LIFE = timedelta(hours=24)  # an upload that nobody has continued for this long is abandoned


class ImportFailed(Exception):
    """A file could not be imported. The message names neither its location nor its content."""


def import_parts(context: JobContext) -> list[str]:
    """Copy every file that is still to be imported, and return a reason for each that failed.

    Each attempt writes a file of its own and announces it like an upload. An attempt that has lost its token
    can therefore change nothing that another recorded, and `sweep_uploads` deletes what it leaves behind.
    """
    with context.services.database.reading() as session:
        planned = session.scalars(
            select(DatasetImport).where(DatasetImport.model_id == context.model.id).order_by(DatasetImport.id)
        ).all()
        tenant = session.get_one(Tenant, context.model.tenant_id).name
    problems = []
    for entry in planned:
        with context.writing() as session:
            target = f"import/{entry.role}/{entry.name}".rstrip("/")
            upload = Upload(id=new_id(), model_id=context.model.id, target=target)
            session.add(upload)
        path, settings = paths.upload(context.model.id, upload.id), context.services.settings
        stored = None
        try:
            limit = settings.file_limit(entry.role)
            stored = copy(settings, context.services.storage, entry.uri, path, tenant, limit)
        except ImportFailed as problem:
            kind = "dataset" if entry.role == ImportRole.TRAIN else entry.role
            problems.append(f"{kind} {entry.name}".rstrip() + f": not imported, because {problem}")
        with context.writing() as session:
            session.execute(delete(Upload).where(Upload.id == upload.id))
            if stored is not None and not _record(context, session, entry, stored):
                context.services.storage.delete(stored.path)
    return problems


def _record(context: JobContext, session: Session, entry: DatasetImport, stored: Stored) -> bool:
    """Record the file, unless it was uploaded, cancelled or imported by another job in the meantime.

    Uploads and retirement take the same lock on the model.
    """
    session.get_one(Model, context.model.id, with_for_update=True)
    if session.scalar(select(DatasetImport.id).where(DatasetImport.id == entry.id)) is None:
        return False
    session.add(_imported_file(context, entry, stored))
    session.execute(delete(DatasetImport).where(DatasetImport.id == entry.id))
    return True


def _imported_file(context: JobContext, entry: DatasetImport, stored: Stored) -> DatasetPart | ModelFile:
    file = {"model_id": context.model.id, **asdict(stored)}
    if entry.role not in PART_IMPORTS:
        return ModelFile(kind=entry.role, **file)
    return DatasetPart(
        name=entry.name,
        role=entry.role,
        first_generation=None if context.model.state == ModelState.READY else 0,
        **file,
    )


def copy(
    settings: Settings, storage: Storage, uri: str, target: str, tenant: str, limit: int | None = None
) -> Stored:
    """Copy the file at `uri` into Lethe's storage for the tenant with this name.

    `limit` is the most bytes, by default those of an upload.

    The worker does the reading, so the URI is checked again here, against the worker's own settings. Only
    problems of the source raise `ImportFailed`. If our own storage fails, the attempt fails.
    """
    with _opened(uri, settings.import_roots, tenant) as source:
        return storage.write(target, _limited(source, limit or settings.max_upload_bytes))


@contextmanager
def _opened(uri: str, roots: str, tenant: str) -> Iterator[IO[bytes]]:
    with _import_errors():
        source = open_uri(import_roots.check(uri, roots, tenant))
    with source:
        yield source


def _limited(source: IO[bytes], limit: int) -> Iterator[bytes]:
    size = 0
    while chunk := _read_chunk(source):
        size += len(chunk)
        if size > limit:
            raise ImportFailed(f"the file is longer than {limit} bytes")
        yield chunk


def _read_chunk(source: IO[bytes]) -> bytes:
    with _import_errors():
        return source.read(CHUNK)


@contextmanager
def _import_errors() -> Iterator[None]:
    """Turn errors of the source into `ImportFailed`."""
    try:
        yield
    except import_roots.ImportRefused as problem:
        raise ImportFailed(str(problem)) from None
    except (OSError, ValueError, ImportError, StorageError) as problem:
        log.warning("import failed", problem=type(problem).__name__)
        raise ImportFailed(_describe(problem)) from None


def _describe(problem: Exception) -> str:
    """Describe an error of the source without quoting it, because it may name a location."""
    if isinstance(problem, FileNotFoundError):
        return "the file does not exist"
    if isinstance(problem, PermissionError):
        return "the worker has no permission to read the file"
    return "the file could not be read; the worker's log names the error"


def sweep_uploads(context: JobContext) -> None:
    """Delete uploaded files that are recorded nowhere, left by crashes or by clients that went away.

    Files are listed before SQL is queried. An upload's row is written before its file, so a listed file
    without a row belongs to no upload.
    """
    storage, model_id = context.services.storage, context.model.id
    files = storage.list(paths.uploaded(model_id))
    expired = (Upload.model_id == model_id, Upload.touched_at < now() - UPLOAD_LIFE)
    with context.services.database.reading() as session:
        any_expired = session.scalar(select(Upload.id).where(*expired).limit(1)) is not None
    if any_expired:
        with context.writing() as session:
            session.execute(delete(Upload).where(*expired))
    with context.services.database.reading() as session:
        under_way = set(session.scalars(select(Upload.id).where(Upload.model_id == model_id)))
        recorded = {
            *session.scalars(select(DatasetPart.path).where(DatasetPart.model_id == model_id)),
            *session.scalars(select(DatasetPart.features_path).where(DatasetPart.model_id == model_id)),
            *session.scalars(select(ModelFile.path).where(ModelFile.model_id == model_id)),
        }
    for path in files:
        upload = _upload_of(path)
        if upload is not None and path not in recorded and upload not in under_way:
            storage.delete(path)


def _upload_of(path: str) -> UUID | None:
    """Return the upload that a file belongs to, or None if the file is not one of ours.

    Ours are datasets/{model}/{upload}, its .chunks/{start}, and temporary files of both.
    """
    try:
        return UUID(path.split("/")[2].partition(".")[0])
    except ValueError:  # file systems keep files of their own, such as .nfs… for a file deleted while open
        return None

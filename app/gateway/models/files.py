"""Files of a model: copied into Lethe's own storage, whole or piece by piece, then recorded in SQL.

An upload's row is written before its bytes and removed with the record of the finished file, so that a
crash leaves nothing that nobody knows of: the worker removes what has neither row nor record.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from sqlalchemy import update
from sqlalchemy.orm import Session

from app.bootstrap import Services
from app.clock import new_id, now
from app.db import paths
from app.db.states import FileKind, ModelState, PartRole
from app.db.tables import DatasetPart, Model, ModelFile, Upload
from app.errors import BodyTooLarge, Conflict, InvalidRequest, NotFound
from app.models import repository
from app.models.service import get
from app.storage import DRAFT, Storage, Stored
from app.uploads import Piece


@dataclass(frozen=True)
class Target:
    """What a file is for: one of `weights`, `anchor`, `dataset/{part}`, `holdout/{part}`."""

    kind: Literal["weights", "anchor", "dataset", "holdout"]
    part: str = ""

    @property
    def key(self) -> str:
        return f"{self.kind}/{self.part}" if self.part else self.kind

    @property
    def role(self) -> PartRole:
        return PartRole.HOLDOUT if self.kind == "holdout" else PartRole.TRAIN


@dataclass(frozen=True)
class Partial:
    received: int
    total: int


@dataclass(frozen=True)
class Status:
    complete: bool
    received: int
    total: int | None
    sha256: str | None


Body = Iterable[bytes]


def store(
    services: Services, tenant_id: UUID, name: str, target: Target, body: Body, wanted: str | None
) -> Stored:
    """Copy a whole file; sending the same one again replaces it."""
    with services.database.writing() as session:
        model = _open_for(session, get(session, tenant_id, name), target)
        upload = Upload(id=new_id(), model_id=model.id, target=target.key)
        session.add(upload)
    try:
        stored = services.storage.write(paths.upload(model.id, upload.id), body)
        _check_digest(stored, wanted)
    except BaseException:
        _abandon(services, upload)
        raise
    _finish(services, tenant_id, name, target, upload.id, stored)
    return stored


def store_piece(
    services: Services,
    tenant_id: UUID,
    name: str,
    target: Target,
    piece: Piece,
    body: Body,
    wanted: str | None,
) -> Stored | Partial:
    """Take one piece; the last one makes the file. Byte 0 begins anew."""
    if piece.total > services.settings.max_upload_bytes:
        raise BodyTooLarge(f"At most {services.settings.max_upload_bytes} bytes are taken here.")
    upload = _upload_for(services, tenant_id, name, target, piece)
    if upload.received != piece.end:  # else: this last piece is here already, and was not put together
        _take_piece(services, upload, piece, body)
    if piece.end < piece.total:
        return Partial(piece.end, piece.total)
    stored = services.storage.write(
        paths.upload(upload.model_id, upload.id), _joined(services.storage, upload)
    )
    try:
        _check_size(stored, piece.total)
        _check_digest(stored, wanted)
    except BaseException:
        _abandon(services, upload)
        raise
    _finish(services, tenant_id, name, target, upload.id, stored)
    services.storage.delete(paths.upload_chunks(upload.model_id, upload.id))
    return stored


def status(session: Session, tenant_id: UUID, name: str, target: Target) -> Status:
    model = get(session, tenant_id, name)
    upload = repository.unfinished(session, model.id, target.key)
    if upload is not None:
        return Status(complete=False, received=upload.received, total=upload.total, sha256=None)
    found = _recorded(session, model, target)
    if found is None:
        raise NotFound("Nothing was sent there.")
    return Status(complete=True, received=found.size, total=found.size, sha256=found.sha256)


def remove(services: Services, tenant_id: UUID, name: str, target: Target) -> None:
    """Take back what was sent, or what was to be imported."""
    with services.database.writing() as session:
        model = _open_for(session, get(session, tenant_id, name, lock=True), target)
        found = _recorded(session, model, target)
        upload = repository.unfinished(session, model.id, target.key)
        importing = repository.pending_import(session, model.id, target.role, target.part)
        gone = [entry for entry in (found, upload, importing) if entry is not None]
        if not gone:
            raise NotFound("Nothing was sent there.")
        for entry in gone:
            session.delete(entry)
    if found is not None:
        services.storage.delete(found.path)
    if upload is not None:
        services.storage.delete(paths.upload_chunks(model.id, upload.id))


def _open_for(session: Session, model: Model, target: Target) -> Model:
    """A model takes files before it is validated; a ready one takes data to be appended."""
    if model.state in (ModelState.UPLOADING, ModelState.REJECTED):
        return model
    if model.state != ModelState.READY or target.kind != "dataset":
        raise Conflict(f"The model is {model.state}; {target.kind} is taken only before it is validated.")
    if repository.is_appending(session, model.id):
        raise Conflict("Rows are being appended; send more when that is done.")
    if target.part in repository.live_names(session, model.id):
        raise Conflict("A part of this name is in the data already; rows to append need a new name.")
    return model


def _upload_for(services: Services, tenant_id: UUID, name: str, target: Target, piece: Piece) -> Upload:
    replaced: Upload | None = None
    with services.database.writing() as session:
        model = _open_for(session, get(session, tenant_id, name, lock=True), target)
        upload = repository.unfinished(session, model.id, target.key)
        if piece.start == 0 and not (upload and upload.received == piece.end == piece.total == upload.total):
            replaced, upload = upload, Upload(model_id=model.id, target=target.key, total=piece.total)
            session.add(upload)
            if replaced is not None:
                session.delete(replaced)
        elif upload is None:
            raise Conflict("No such upload is under way; begin with byte 0.", received=0)
        elif piece.total != upload.total:
            raise Conflict("The file had another length when its upload began.", received=upload.received)
        elif upload.received not in (piece.start, piece.end if piece.end == piece.total else -1):
            raise Conflict(f"Go on from byte {upload.received}.", received=upload.received)
    if replaced is not None:
        services.storage.delete(paths.upload_chunks(model.id, replaced.id))
    return upload


def _take_piece(services: Services, upload: Upload, piece: Piece, body: Body) -> None:
    path = paths.upload_chunk(upload.model_id, upload.id, piece.start)
    stored = services.storage.write(path, body)
    if stored.size != piece.end - piece.start:
        services.storage.delete(path)
        raise InvalidRequest("The body is not as long as its Content-Range says.")
    with services.database.writing() as session:
        taken = session.execute(
            update(Upload)
            .where(Upload.id == upload.id, Upload.received == piece.start)
            .values(received=piece.end, touched_at=now())
            .returning(Upload.id)
        ).scalar()
    if taken is None:
        raise Conflict("Another client sends the same file; begin anew with byte 0.")


def _joined(storage: Storage, upload: Upload) -> Iterator[bytes]:
    for path in storage.list(paths.upload_chunks(upload.model_id, upload.id)):
        if not path.endswith(DRAFT):  # left by a process that was killed, or being written by a second client
            yield from storage.read(path)


def _check_size(stored: Stored, total: int) -> None:
    if stored.size != total:
        raise Conflict("Another client sends the same file; begin anew with byte 0.")


def _check_digest(stored: Stored, wanted: str | None) -> None:
    if wanted is not None and stored.sha256 != wanted:
        raise InvalidRequest("The bytes that arrived do not have the digest in Repr-Digest.")


def _abandon(services: Services, upload: Upload) -> None:
    services.storage.delete(paths.upload(upload.model_id, upload.id))
    services.storage.delete(paths.upload_chunks(upload.model_id, upload.id))
    with services.database.writing() as session:
        if (row := session.get(Upload, upload.id)) is not None:
            session.delete(row)


def _finish(
    services: Services, tenant_id: UUID, name: str, target: Target, upload_id: UUID, stored: Stored
) -> None:
    with services.database.writing() as session:
        model = _open_for(session, get(session, tenant_id, name, lock=True), target)
        upload = session.get(Upload, upload_id)
        if upload is None:
            raise Conflict("The upload was replaced or took too long; begin anew.")
        session.delete(upload)
        replaced = _recorded(session, model, target)
        importing = repository.pending_import(session, model.id, target.role, target.part)
        for entry in (replaced, importing):
            if entry is not None:
                session.delete(entry)
        session.flush()
        session.add(_record_of[target.kind](model, target, stored))
    if replaced is not None:
        services.storage.delete(replaced.path)


def _recorded(session: Session, model: Model, target: Target) -> DatasetPart | ModelFile | None:
    if target.part:
        return repository.part_named(session, model.id, target.role, target.part)
    return session.get(ModelFile, (model.id, target.kind))


def _part(model: Model, target: Target, stored: Stored) -> DatasetPart:
    """Sent to a ready model, a part has no generation yet: it waits to be appended."""
    return DatasetPart(
        model_id=model.id,
        name=target.part,
        role=target.role,
        path=stored.path,
        sha256=stored.sha256,
        size=stored.size,
        first_generation=None if model.state == ModelState.READY else 0,
    )


def _file(model: Model, target: Target, stored: Stored) -> ModelFile:
    return ModelFile(
        model_id=model.id,
        kind=FileKind(target.kind),
        path=stored.path,
        sha256=stored.sha256,
        size=stored.size,
    )


_record_of: dict[str, Callable[[Model, Target, Stored], DatasetPart | ModelFile]] = {
    "weights": _file,
    "anchor": _file,
    "dataset": _part,
    "holdout": _part,
}

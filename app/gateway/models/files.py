"""Uploads of a model's files, whole or in pieces, into Lethe's own storage.

An upload's row is written before its bytes, and deleted in the transaction that records the finished file.
So a crash leaves no unknown file behind: the worker deletes files that have neither an upload row nor a
record.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from sqlalchemy import update
from sqlalchemy.orm import Session

from app.core.clock import new_id, now
from app.core.storage import DRAFT, Storage, Stored
from app.db import audit_log, paths
from app.db.audit_log import Action
from app.db.manifest import Manifest
from app.db.representations import REPRESENTATION_FILES
from app.db.states import FileKind, ImportRole, ModelState, PartRole
from app.db.tables import DatasetImport, DatasetPart, Model, ModelFile, Upload
from app.gateway.errors import BodyTooLarge, Conflict, InvalidRequest, NotFound
from app.gateway.models import repository, representations
from app.gateway.models.service import get
from app.gateway.uploads import Piece
from app.services import Services


@dataclass(frozen=True)
class Target:
    """What a file is for: a model's `weights`, `anchor`, `representation` or `tokenizer`, or a part.

    Parts are `dataset/{part}` and `holdout/{part}`.
    """

    kind: Literal["weights", "anchor", "representation", "tokenizer", "dataset", "holdout"]
    part: str = ""

    @property
    def key(self) -> str:
        """The path of the file below its model."""
        return f"{self.kind}/{self.part}" if self.part else self.kind

    @property
    def role(self) -> PartRole:
        """The role of a dataset part."""
        return PartRole.HOLDOUT if self.kind == "holdout" else PartRole.TRAIN

    @property
    def import_role(self) -> ImportRole | None:
        """The role of an import of the same file. Weights and the anchor are never imported."""
        if self.part:
            return ImportRole(self.role)
        return ImportRole(self.kind) if self.kind in REPRESENTATION_FILES else None


@dataclass(frozen=True)
class UnfinishedUpload:
    """An upload in pieces that is not finished."""

    received: int
    total: int


@dataclass(frozen=True)
class Status:
    """How much of a file has arrived."""

    complete: bool
    received: int
    total: int | None
    sha256: str | None


Body = Iterable[bytes]
NOTHING_UPLOADED = "No file was uploaded there."
CONCURRENT_UPLOAD = "Another client is uploading the same file. Start again with byte 0."


def store(
    services: Services, tenant_id: UUID, name: str, target: Target, body: Body, sha256: str | None
) -> Stored:
    """Store a whole file, replacing an earlier one. `sha256` is the digest it must have, if any."""
    with services.database.writing() as session:
        model = _open_for(session, get(session, tenant_id, name), target)
        _check_expected(model, target)
        upload = Upload(id=new_id(), model_id=model.id, target=target.key)
        session.add(upload)
    try:
        limit = services.settings.file_limit(target.kind)
        stored = services.storage.write(paths.upload(model.id, upload.id), _limited(body, limit))
        _check_digest(stored, sha256)
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
    sha256: str | None,
) -> Stored | UnfinishedUpload:
    """Store one piece of a file. The last piece completes the file, a piece from byte 0 starts it again."""
    limit = services.settings.file_limit(target.kind)
    if piece.total > limit:
        raise BodyTooLarge(f"The file has {piece.total} bytes. At most {limit} are accepted.")
    upload = _upload_for(services, tenant_id, name, target, piece)
    if upload.received != piece.end:  # otherwise the last piece has arrived before, but was not assembled
        _store_piece(services, upload, piece, body)
    if piece.end < piece.total:
        return UnfinishedUpload(piece.end, piece.total)
    stored = services.storage.write(
        paths.upload(upload.model_id, upload.id), _joined(services.storage, upload)
    )
    try:
        _check_size(stored, piece.total)
        _check_digest(stored, sha256)
    except BaseException:
        _abandon(services, upload)
        raise
    _finish(services, tenant_id, name, target, upload.id, stored)
    services.storage.delete(paths.upload_chunks(upload.model_id, upload.id))
    return stored


def status(session: Session, tenant_id: UUID, name: str, target: Target) -> Status:
    """Return how much of a file has arrived, or raise `NotFound` if nothing has."""
    model = get(session, tenant_id, name)
    upload = repository.unfinished_upload(session, model.id, target.key)
    if upload is not None:
        return Status(complete=False, received=upload.received, total=upload.total, sha256=None)
    record = _recorded(session, model, target)
    if record is None:
        raise NotFound(NOTHING_UPLOADED)
    return Status(complete=True, received=record.size, total=record.size, sha256=record.sha256)


def remove(services: Services, tenant_id: UUID, name: str, target: Target) -> None:
    """Delete an uploaded file, an unfinished upload or a planned import."""
    with services.database.writing() as session:
        model = _open_for(session, get(session, tenant_id, name, lock=True), target)
        record = _recorded(session, model, target)
        upload = repository.unfinished_upload(session, model.id, target.key)
        planned = _planned_import(session, model, target)
        entries = [entry for entry in (record, upload, planned) if entry is not None]
        if not entries:
            raise NotFound(NOTHING_UPLOADED)
        for entry in entries:
            session.delete(entry)
        _record(session, Action.FILE_DELETED, model, target)
    if record is not None:
        _delete_stored(services, record)
    if upload is not None:
        services.storage.delete(paths.upload_chunks(model.id, upload.id))


def _open_for(session: Session, model: Model, target: Target) -> Model:
    """Return the model if it accepts this file now.

    Files are accepted before validation. A ready model accepts dataset parts, which are staged for an append.
    """
    if model.state in (ModelState.UPLOADING, ModelState.REJECTED):
        return model
    if model.state != ModelState.READY or target.kind != "dataset":
        raise Conflict(
            f"The model is {model.state}. The file for `{target.kind}` can be changed only before validation."
        )
    if repository.is_appending(session, model.id):
        raise Conflict("An append is in progress. Upload more parts after it has ended.")
    if target.part in repository.live_names(session, model.id):
        raise Conflict(
            "The training data already has a part with this name. Choose another name for the rows to append."
        )
    return model


def _check_expected(model: Model, target: Target) -> None:
    """Raise `Conflict` if the file belongs to a representation, and the manifest has no use for it."""
    if target.kind in REPRESENTATION_FILES:
        representations.check_expected(Manifest.model_validate(model.manifest), FileKind(target.kind))


def _upload_for(services: Services, tenant_id: UUID, name: str, target: Target, piece: Piece) -> Upload:
    replaced: Upload | None = None
    with services.database.writing() as session:
        model = _open_for(session, get(session, tenant_id, name, lock=True), target)
        _check_expected(model, target)
        upload = repository.unfinished_upload(session, model.id, target.key)
        if piece.start == 0 and not (upload and upload.received == piece.end == piece.total == upload.total):
            replaced, upload = upload, Upload(model_id=model.id, target=target.key, total=piece.total)
            session.add(upload)
            if replaced is not None:
                session.delete(replaced)
        elif upload is None:
            raise Conflict("No upload of this file is in progress. Start with byte 0.", received=0)
        elif piece.total != upload.total:
            raise Conflict(
                "The file had another size when its upload started. Start again with byte 0.",
                received=upload.received,
            )
        elif upload.received not in (piece.start, piece.end if piece.end == piece.total else -1):
            raise Conflict(
                f"The piece does not follow the last one. Continue from byte {upload.received}.",
                received=upload.received,
            )
    if replaced is not None:
        services.storage.delete(paths.upload_chunks(model.id, replaced.id))
    return upload


def _store_piece(services: Services, upload: Upload, piece: Piece, body: Body) -> None:
    path = paths.upload_chunk(upload.model_id, upload.id, piece.start)
    stored = services.storage.write(path, body)
    if stored.size != piece.end - piece.start:
        services.storage.delete(path)
        raise InvalidRequest("The size of the body differs from its Content-Range. Send the piece again.")
    with services.database.writing() as session:
        updated = session.execute(
            update(Upload)
            .where(Upload.id == upload.id, Upload.received == piece.start)
            .values(received=piece.end, touched_at=now())
            .returning(Upload.id)
        ).scalar()
    if updated is None:
        raise Conflict(CONCURRENT_UPLOAD)


def _limited(body: Body, limit: int) -> Iterator[bytes]:
    """Pass the body on until it exceeds the limit, which differs between kinds of files."""
    size = 0
    for chunk in body:
        size += len(chunk)
        if size > limit:
            raise BodyTooLarge(f"A file of this kind may have at most {limit} bytes.")
        yield chunk


def _joined(storage: Storage, upload: Upload) -> Iterator[bytes]:
    for path in storage.list(paths.upload_chunks(upload.model_id, upload.id)):
        if not path.endswith(DRAFT):  # from a process that was killed, or from another client
            yield from storage.read(path)


def _check_size(stored: Stored, total: int) -> None:
    if stored.size != total:
        raise Conflict(CONCURRENT_UPLOAD)


def _check_digest(stored: Stored, sha256: str | None) -> None:
    if sha256 is not None and stored.sha256 != sha256:
        raise InvalidRequest("The digest of the file differs from its Repr-Digest. Upload the file again.")


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
        _check_expected(model, target)
        upload = session.get(Upload, upload_id)
        if upload is None:
            raise Conflict("The upload was replaced by another one or took too long. Start again.")
        session.delete(upload)
        replaced = _recorded(session, model, target)
        planned = _planned_import(session, model, target)
        for entry in (replaced, planned):
            if entry is not None:
                session.delete(entry)
        session.flush()
        session.add(_part(model, target, stored) if target.part else _file(model, target, stored))
        _record(session, Action.FILE_UPLOADED, model, target)
    if replaced is not None:
        _delete_stored(services, replaced)


def _record(session: Session, action: Action, model: Model, target: Target) -> None:
    """Add an entry to the audit log. It has no digest of the file: one could confirm a guess of the rows."""
    details = {"file": target.kind, "part": target.part}
    audit_log.record(session, model.tenant_id, action, f"model/{model.name}", details)


def _delete_stored(services: Services, record: DatasetPart | ModelFile) -> None:
    """Delete a file that is recorded no more, and the features that were computed from it."""
    services.storage.delete(record.path)
    if isinstance(record, DatasetPart) and record.features_path is not None:
        services.storage.delete(record.features_path)


def _recorded(session: Session, model: Model, target: Target) -> DatasetPart | ModelFile | None:
    if target.part:
        return repository.part_named(session, model.id, target.role, target.part)
    return session.get(ModelFile, (model.id, target.kind))


def _planned_import(session: Session, model: Model, target: Target) -> DatasetImport | None:
    role = target.import_role
    return None if role is None else repository.pending_import(session, model.id, role, target.part)


def _part(model: Model, target: Target, stored: Stored) -> DatasetPart:
    """Create the record of a dataset part.

    On a ready model it is staged: it has no generation until an append.
    """
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

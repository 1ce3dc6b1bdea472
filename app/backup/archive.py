"""Backups in a folder: the database and its files as of one moment, without the keys of the deployment."""

import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import UUID

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from app.backup import dumps
from app.backup.dumps import BackupError
from app.core.clock import now
from app.core.storage import CHUNK, Storage, StorageError, StorageUnavailable
from app.core.version import VERSION
from app.db import paths, rollback_guard
from app.db.draws import files_of_draft
from app.db.key_tables import DataKeyRecord
from app.db.states import DataKeyState, VersionState
from app.db.tables import (
    ApiKey,
    DatasetPart,
    DrawRecord,
    LibraryRepresentation,
    LogHead,
    ModelFile,
    Upload,
    Version,
)
from app.services import Services

FORMAT = 1
MANIFEST = "backup.json"
STORED = ("datasets", "attempts", "library", "keys")  # the folders of the storage
_PENDING = DataKeyState.PENDING  # such a key may have no file, and nothing needs it yet
TRIES = 5  # a purge may delete files while they are copied; then the backup starts again


@dataclass(frozen=True)
class File:
    """A stored file and its digest."""

    path: str
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The description of a backup, in `backup.json`."""

    format: int
    lethe: str
    made_at: str
    database: str
    dump: str
    files: list[File]
    log_size: int
    log_head: str


_MANIFEST = TypeAdapter(Manifest)


class _PurgedMeanwhile(Exception):
    pass


def create(services: Services, folder: Path) -> Manifest:
    """Create a backup in a new or empty folder. Its manifest is written last, so it marks a complete one."""
    if folder.exists() and any(folder.iterdir()):
        raise BackupError(f"the folder {folder} is not empty; choose a new one")
    for _ in range(TRIES):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            manifest = _create(services, folder)
        except BaseException as problem:
            shutil.rmtree(folder)
            if isinstance(problem, _PurgedMeanwhile):
                continue
            raise
        return manifest
    raise BackupError("files were purged during every try; run the command again")


def _create(services: Services, folder: Path) -> Manifest:
    moment = now()  # before the snapshot: requests received from now on may be missing
    with dumps.snapshot(services, folder / dumps.NAME) as session:
        files = sorted(referred_files(session), key=lambda file: file.path)
        data_keys = session.scalars(select(DataKeyRecord.id).where(DataKeyRecord.state != _PENDING)).all()
        head = session.get(LogHead, 1)
    copies = Storage(f"file://{folder.absolute() / 'storage'}")
    for file in files:
        _copy(services.storage, copies, file)
    files += [_copy_data_key(services.storage, copies, key_id) for key_id in sorted(data_keys)]
    manifest = Manifest(
        format=FORMAT,
        lethe=VERSION,
        made_at=moment.isoformat(),
        database="sqlite" if services.database.is_sqlite else "postgresql",
        dump=_sha256(folder / dumps.NAME),
        files=files,
        log_size=head.size if head is not None else 0,
        log_head=head.tree_head if head is not None else "",
    )
    (folder / MANIFEST).write_text(json.dumps(asdict(manifest), indent=1) + "\n")
    return manifest


def restore(
    services: Services, folder: Path, seen: str | None = None, *, keep_keys: bool = False
) -> Manifest:
    """Restore a backup into an empty database and an empty storage.

    `seen` is the newest signed tree head that anyone has. Nothing is changed before the backup is known to be
    complete and not older than that. The database is restored last: if the restore is interrupted, it can be
    run again, and nothing can start on an incomplete storage. API keys are revoked unless `keep_keys` is set.
    """
    manifest = _read(folder)
    _refuse_older(services, manifest, seen)
    copies = Storage(f"file://{folder.absolute() / 'storage'}")
    _check_whole(manifest, folder, copies)
    dumps.check_empty(services, manifest.database)
    _check_storage(services, manifest)
    try:
        for file in manifest.files:
            _copy(copies, services.storage, file)
    except _PurgedMeanwhile:
        raise BackupError("files of the backup disappeared while they were copied; run it again") from None
    if seen is not None:  # before the database, so that workers refuse any other log
        rollback_guard.write(services.settings.log_seen_path, seen)
    dumps.load(services, folder / dumps.NAME)
    with services.database.writing() as session:
        session.execute(delete(Upload))  # their chunks are not in a backup, so clients have to start again
        if not keep_keys:  # a key that was revoked since the backup would become valid again
            session.execute(update(ApiKey).where(ApiKey.revoked_at.is_(None)).values(revoked_at=now()))
    with services.database.reading() as session:
        for tree_head in (manifest.log_head, seen):
            if tree_head:
                rollback_guard.check(session, services.settings, tree_head)
    return manifest


def _refuse_older(services: Services, manifest: Manifest, seen: str | None) -> None:
    """Refuse a backup that is older than a tree head given by the operator or kept on this machine."""
    origin = services.settings.log_origin
    seen_head = rollback_guard.read(seen) if seen is not None else None
    if seen_head is not None and seen_head.origin != origin:
        raise BackupError(
            f"the tree head is of the log {seen_head.origin}, but LETHE_LOG_ORIGIN is {origin}; set it to "
            f"{seen_head.origin}, or leave out --seen to continue the log under a new name"
        )
    for head in (seen_head, rollback_guard.remembered(services.settings)):
        if head is not None and head.origin == origin and head.size > manifest.log_size:
            raise BackupError(
                f"the log was seen with {head.size} leaves and this backup has {manifest.log_size}: if it "
                "were continued, two certificates would share an index; use a newer backup or another "
                "LETHE_LOG_ORIGIN"
            )


def _check_storage(services: Services, manifest: Manifest) -> None:
    """Require an empty storage. Files of this same backup may remain from an interrupted restore."""
    known = {file.path for file in manifest.files}
    if any(path not in known for top in STORED for path in services.storage.list(top)):
        raise BackupError("the storage is not empty; point LETHE_STORAGE_URL at an empty one")


def _read(folder: Path) -> Manifest:
    try:
        document = json.loads((folder / MANIFEST).read_text())
    except FileNotFoundError:
        raise BackupError(f"{folder} is not a complete backup: it has no {MANIFEST}") from None
    except (ValueError, RecursionError):
        raise _damaged(folder) from None
    if not isinstance(document, dict):
        raise _damaged(folder)
    if document.get("format") != FORMAT:
        raise BackupError(
            "the backup has a format that this version does not know; use the version that created it"
        )
    try:
        return _MANIFEST.validate_python(document)
    except ValidationError:
        raise _damaged(folder) from None


def _damaged(folder: Path) -> BackupError:
    return BackupError(f"{folder / MANIFEST} is damaged or was changed; use another backup")


def _check_whole(manifest: Manifest, folder: Path, copies: Storage) -> None:
    damaged = [] if _sha256(folder / dumps.NAME) == manifest.dump else [dumps.NAME]
    damaged += [
        file.path
        for file in manifest.files
        if not copies.exists(file.path) or _digest(copies.read(file.path)) != file.sha256
    ]
    if damaged:
        raise BackupError(
            f"{len(damaged)} of {len(manifest.files) + 1} files of the backup are missing or damaged, "
            f"starting with {damaged[0]}; use another backup"
        )


def referred_files(session: Session) -> Iterator[File]:
    """Yield the files that the database refers to."""
    stored = Version.state != VersionState.PURGED
    for query in (
        select(DatasetPart.path, DatasetPart.sha256),
        select(DatasetPart.features_path, DatasetPart.features_sha256),
        select(ModelFile.path, ModelFile.sha256),
        select(Version.path, Version.sha256).where(stored),
        select(LibraryRepresentation.graph_path, LibraryRepresentation.graph_sha256),
        select(LibraryRepresentation.tokenizer_path, LibraryRepresentation.tokenizer_sha256),
    ):
        for path, sha256 in session.execute(query):
            if path is not None and sha256 is not None:
                yield File(path, sha256)
    for draft in session.scalars(select(DrawRecord.draft)):
        for file in files_of_draft(draft):
            yield File(file.path, file.sha256)


def _copy(source: Storage, target: Storage, file: File) -> None:
    try:
        stored = target.write(file.path, source.read(file.path))
    except StorageUnavailable:
        raise
    except (StorageError, FileNotFoundError):
        raise _PurgedMeanwhile from None
    if stored.sha256 != file.sha256:
        raise BackupError(
            f"the file {file.path} does not have the digest that the database has; it is damaged"
        )


def _copy_data_key(source: Storage, target: Storage, key_id: UUID) -> File:
    """Copy the file of a data key. SQL does not know its digest, which changes with the deployment key."""
    path = paths.data_key(key_id)
    try:
        stored = target.write(path, source.read(path))
    except StorageUnavailable:
        raise
    except (StorageError, FileNotFoundError):
        raise _PurgedMeanwhile from None
    return File(path, stored.sha256)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return _digest(iter(lambda: file.read(CHUNK), b""))


def _digest(chunks: Iterator[bytes]) -> str:
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()

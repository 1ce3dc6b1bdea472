"""Database and files as they were at one moment, in a folder; keys are not among them."""

import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from app import log_seen
from app.backup import dumps
from app.backup.dumps import BackupError
from app.bootstrap import Services
from app.clock import now
from app.db.states import VersionState
from app.db.tables import DatasetPart, HeldDraw, LogHead, ModelFile, Upload, Version
from app.storage import CHUNK, Storage, StorageAway, StorageError
from app.version import VERSION
from certificate.note import Checkpoint

FORMAT = 1
MANIFEST = "backup.json"
TRIES = 5  # a purge that ends while files are copied takes some of them away: then the moment is a later one


@dataclass(frozen=True)
class File:
    path: str
    sha256: str


@dataclass(frozen=True)
class Manifest:
    format: int
    lethe: str
    made_at: str
    database: str
    dump: str
    files: list[File]
    log_size: int
    log_head: str


class _PurgedMeanwhile(Exception):
    pass


def create(services: Services, folder: Path) -> Manifest:
    """The folder is complete when it has a manifest, which is written last."""
    if folder.exists() and any(folder.iterdir()):
        raise BackupError(f"{folder} is not empty")
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
    raise BackupError("files were purged every time while they were being copied; try again")


def _create(services: Services, folder: Path) -> Manifest:
    with dumps.snapshot(services, folder / dumps.NAME) as session:
        files = sorted(_referred_to(session), key=lambda file: file.path)
        head = session.get(LogHead, 1)
    copies = Storage(f"file://{folder.absolute() / 'storage'}")
    for file in files:
        _copy(services.storage, copies, file)
    manifest = Manifest(
        format=FORMAT,
        lethe=VERSION,
        made_at=now().isoformat(),
        database="sqlite" if services.database.is_sqlite else "postgresql",
        dump=_sha256(folder / dumps.NAME),
        files=files,
        log_size=head.size if head is not None else 0,
        log_head=head.note if head is not None else "",
    )
    (folder / MANIFEST).write_text(json.dumps(asdict(manifest), indent=1) + "\n")
    return manifest


def restore(services: Services, folder: Path, seen: str | None = None) -> Manifest:
    """Into an empty database and an empty storage; nothing is changed before the backup is found whole."""
    manifest = _read(folder)
    if seen is not None:
        _refuse_older(manifest, log_seen.read(seen), services.settings.log_origin)
    copies = Storage(f"file://{folder.absolute() / 'storage'}")
    _check_whole(manifest, folder, copies)
    if services.storage.list("datasets") or services.storage.list("attempts"):
        raise BackupError("the storage is not empty")
    dumps.load(services, folder / dumps.NAME, manifest.database)
    for file in manifest.files:
        _copy(copies, services.storage, file)
    with services.database.writing() as session:
        session.execute(delete(Upload))  # their pieces are not in a backup: whoever sends begins anew
    with services.database.reading() as session:
        for note in (manifest.log_head, seen):
            if note:
                log_seen.check(session, services.settings, note)
    if seen is not None:
        log_seen.write(services.settings.log_seen_path, seen)
    return manifest


def _refuse_older(manifest: Manifest, seen: Checkpoint, origin: str) -> None:
    if seen.origin == origin and seen.size > manifest.log_size:
        raise BackupError(
            f"the log was seen with {seen.size} leaves and this backup has {manifest.log_size}: going on, "
            "places would have two certificates; use a newer backup, or another LETHE_LOG_ORIGIN"
        )


def _read(folder: Path) -> Manifest:
    try:
        document = json.loads((folder / MANIFEST).read_text())
    except FileNotFoundError:
        raise BackupError(f"{folder} is no backup, or not a whole one: it has no {MANIFEST}") from None
    if document.get("format") != FORMAT:
        raise BackupError("this version does not know the backup's format")
    return Manifest(**{**document, "files": [File(**file) for file in document["files"]]})


def _check_whole(manifest: Manifest, folder: Path, copies: Storage) -> None:
    damaged = [] if _sha256(folder / dumps.NAME) == manifest.dump else [dumps.NAME]
    damaged += [
        file.path
        for file in manifest.files
        if not copies.exists(file.path) or _digest(copies.read(file.path)) != file.sha256
    ]
    if damaged:
        raise BackupError(f"{len(damaged)} files of the backup are missing or damaged, {damaged[0]} first")


def _referred_to(session: Session) -> Iterator[File]:
    there = Version.state != VersionState.PURGED
    for query in (
        select(DatasetPart.path, DatasetPart.sha256),
        select(ModelFile.path, ModelFile.sha256),
        select(Version.path, Version.sha256).where(there),
    ):
        for path, sha256 in session.execute(query):
            yield File(path, sha256)
    for draft in session.scalars(select(HeldDraw.draft)):
        for stored in (draft["release"]["stored"], *(part["stored"] for part in draft["swap"]["rewritten"])):
            yield File(stored["path"], stored["sha256"])


def _copy(source: Storage, target: Storage, file: File) -> None:
    try:
        stored = target.write(file.path, source.read(file.path))
    except StorageAway:
        raise
    except (StorageError, FileNotFoundError):
        raise _PurgedMeanwhile from None
    if stored.sha256 != file.sha256:
        raise BackupError(f"not the file that was stored: {file.path}")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return _digest(iter(lambda: file.read(CHUNK), b""))


def _digest(chunks: Iterator[bytes]) -> str:
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()

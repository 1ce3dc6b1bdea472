"""Database and files as they were at one moment, in a folder; keys are not among them."""

import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from app import log_seen
from app.backup import dumps
from app.backup.dumps import BackupError
from app.bootstrap import Services
from app.clock import now
from app.db.states import VersionState
from app.db.tables import ApiKey, DatasetPart, HeldDraw, LogHead, ModelFile, Upload, Version
from app.storage import CHUNK, Storage, StorageAway, StorageError
from app.version import VERSION

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
    moment = now()  # before the snapshot: a request received from here on may be missing
    with dumps.snapshot(services, folder / dumps.NAME) as session:
        files = sorted(_referred_to(session), key=lambda file: file.path)
        head = session.get(LogHead, 1)
    copies = Storage(f"file://{folder.absolute() / 'storage'}")
    for file in files:
        _copy(services.storage, copies, file)
    manifest = Manifest(
        format=FORMAT,
        lethe=VERSION,
        made_at=moment.isoformat(),
        database="sqlite" if services.database.is_sqlite else "postgresql",
        dump=_sha256(folder / dumps.NAME),
        files=files,
        log_size=head.size if head is not None else 0,
        log_head=head.note if head is not None else "",
    )
    (folder / MANIFEST).write_text(json.dumps(asdict(manifest), indent=1) + "\n")
    return manifest


def restore(
    services: Services, folder: Path, seen: str | None = None, *, keep_keys: bool = False
) -> Manifest:
    """Into an empty database and an empty storage; nothing is changed before the backup is found whole.

    The database comes last: broken off before, it can be run again, and nothing starts on half a storage.
    """
    manifest = _read(folder)
    _refuse_older(services, manifest, seen)
    copies = Storage(f"file://{folder.absolute() / 'storage'}")
    _check_whole(manifest, folder, copies)
    dumps.check_empty(services, manifest.database)
    _check_storage(services, manifest)
    for file in manifest.files:
        _copy(copies, services.storage, file)
    if seen is not None:  # already now: workers refuse a log that turns out not to be this one
        log_seen.write(services.settings.log_seen_path, seen)
    dumps.load(services, folder / dumps.NAME)
    with services.database.writing() as session:
        session.execute(delete(Upload))  # their pieces are not in a backup: whoever sends begins anew
        if not keep_keys:  # one that was revoked since would be good again
            session.execute(update(ApiKey).where(ApiKey.revoked_at.is_(None)).values(revoked_at=now()))
    with services.database.reading() as session:
        for note in (manifest.log_head, seen):
            if note:
                log_seen.check(session, services.settings, note)
    return manifest


def _refuse_older(services: Services, manifest: Manifest, seen: str | None) -> None:
    """By what the operator brings, and by what a worker on this machine remembers."""
    origin = services.settings.log_origin
    brought = log_seen.read(seen) if seen is not None else None
    if brought is not None and brought.origin != origin:
        raise BackupError(
            f"the tree head is of the log {brought.origin}, LETHE_LOG_ORIGIN is {origin}: set it to that, or "
            "leave --seen out if the log is to go on under a new name"
        )
    for head in (brought, log_seen.remembered(services.settings)):
        if head is not None and head.origin == origin and head.size > manifest.log_size:
            raise BackupError(
                f"the log was seen with {head.size} leaves and this backup has {manifest.log_size}: going "
                "on, places would have two certificates; use a newer backup, or another LETHE_LOG_ORIGIN"
            )


def _check_storage(services: Services, manifest: Manifest) -> None:
    """Files of this very backup may be there already, from a restore that was broken off."""
    known = {file.path for file in manifest.files}
    if any(path not in known for top in ("datasets", "attempts") for path in services.storage.list(top)):
        raise BackupError("the storage is not empty")


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

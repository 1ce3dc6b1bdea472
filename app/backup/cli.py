"""The commands `lethe backup` and `lethe restore`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from sqlalchemy.exc import SQLAlchemyError

from app.backup import archive
from app.backup.dumps import BackupError
from app.core.storage import StorageError
from app.db.rollback_guard import LogOlder
from app.services import Services
from app.startup import DataDir, existing_installation, refuse, settings_or_exit
from lethe.certificate.records import file_problem

EXPECTED_ERRORS = (BackupError, LogOlder, StorageError, OSError, SQLAlchemyError)
console = Console()


def backup(
    folder: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="The folder to create the backup in. It must be new or empty."),
    ],
    data_dir: DataDir = None,
) -> None:
    """Copy the database and the files as of one moment. The service may keep running.

    Keys are not copied. Keep them somewhere else, so that nobody who gets hold of a backup has the keys too.
    """
    with existing_installation(data_dir) as services:
        try:
            manifest = archive.create(services, folder)
        except EXPECTED_ERRORS as problem:
            raise refuse(_explain(problem)) from None
    files = "1 file" if len(manifest.files) == 1 else f"{len(manifest.files)} files"
    console.print(f"Backed up the database and {files} to {folder}. Log size: {manifest.log_size}.")


def restore(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder that `lethe backup` created.")],
    seen: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A file with the newest tree head that anyone has (GET /v1/log/checkpoint)."
        ),
    ] = None,
    keep_keys: Annotated[
        bool,
        typer.Option(
            "--keep-keys",
            help="Keep the API keys of the backup valid, including any that were revoked since.",
        ),
    ] = False,
    data_dir: DataDir = None,
) -> None:
    """Restore a backup into an empty database and an empty storage. Stop the service first."""
    services = Services(settings_or_exit(data_dir))
    try:
        manifest = archive.restore(services, folder, _read_head(seen), keep_keys=keep_keys)
    except EXPECTED_ERRORS as problem:
        raise refuse(_explain(problem)) from None
    finally:
        services.close()
    console.print(f"Restored the backup of {manifest.made_at}. Log size: {manifest.log_size}.")
    console.print("Put the deployment key and the signing key in place before you start the service.")
    if not keep_keys:
        console.print("All API keys are revoked. Create new ones with `lethe key create`.")
    console.print("Send erasure requests again that were received after the backup.")


def _read_head(file: Path | None) -> str | None:
    try:
        return None if file is None else file.read_text()
    except UnicodeDecodeError:
        raise BackupError(f"{file} is not a tree head: it is not text") from None


def _explain(problem: Exception) -> str:
    """Return the message of an error. Those of the database's driver might quote rows, so only name them."""
    if isinstance(problem, SQLAlchemyError):
        return f"the database failed ({type(problem).__name__})"
    if isinstance(problem, OSError):
        return file_problem(problem)
    return str(problem)

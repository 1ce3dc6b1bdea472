"""`lethe backup` and `lethe restore`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from sqlalchemy.exc import SQLAlchemyError

from app import backup as backups
from app.backup.dumps import BackupError
from app.bootstrap import Services
from app.log_seen import LogOlder
from app.startup import refuse, settings_or_exit
from app.storage import StorageError

FAULTS = (BackupError, LogOlder, StorageError, OSError, SQLAlchemyError)
console = Console()


def backup(folder: Annotated[Path, typer.Argument(help="A new folder.")]) -> None:
    """Copy database and files as they are at one moment; everything may go on running.

    Keys are not copied: keep them elsewhere, so that a lost backup is not a lost key.
    """
    services = Services(settings_or_exit())
    try:
        made = backups.create(services, folder)
    except FAULTS as problem:
        raise refuse(_said(problem)) from None
    finally:
        services.close()
    console.print(f"{len(made.files)} files and the database are in {folder}; log size {made.log_size}.")


def restore(
    folder: Annotated[Path, typer.Argument(help="What `lethe backup` made.")],
    seen: Annotated[
        Path | None, typer.Option(help="The newest tree head that anyone has (GET /v1/log/checkpoint).")
    ] = None,
    keep_keys: Annotated[
        bool, typer.Option("--keep-keys", help="Leave API keys as they were, also those revoked since.")
    ] = False,
) -> None:
    """Fill an empty database and an empty storage from a backup; nothing may be running on them."""
    services = Services(settings_or_exit())
    try:
        found = backups.restore(services, folder, seen.read_text() if seen else None, keep_keys=keep_keys)
    except FAULTS as problem:
        raise refuse(_said(problem)) from None
    finally:
        services.close()
    console.print(f"Restored as of {found.made_at}, log size {found.log_size}. Put the keys in place.")
    if not keep_keys:
        console.print("All API keys are revoked: make new ones (`lethe key create`).")
    console.print("Erasure requests received after that moment must be sent again.")


def _said(problem: Exception) -> str:
    """Messages of the database's driver can quote rows."""
    return type(problem).__name__ if isinstance(problem, SQLAlchemyError) else str(problem)

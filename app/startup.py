"""The start of every server command: read the settings, or exit with one line of explanation."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from sqlalchemy.engine import make_url
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from app.core import logging, tracing
from app.core.settings import Settings, SettingsError, load_settings
from app.core.storage import missing_package
from app.core.vault import KeyProblem
from app.db import audit_log, schema
from app.services import Services

log = logging.get_logger("startup")
DataDir = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="The folder with the database, files and keys. Default: LETHE_DATA_DIR, or lethe-data in the "
        "current folder.",
    ),
]


def refuse(message: str) -> typer.Exit:
    """Print one line on standard error and return the exit (code 2) for the caller to raise."""
    Console(stderr=True).print(f"lethe: {message}", markup=False, highlight=False, soft_wrap=True)
    return typer.Exit(2)


def settings_or_exit(data_dir: Path | None = None) -> Settings:
    """Return the settings and configure logging, or exit if a setting cannot be used.

    `data_dir` is the command's own option, which takes precedence over LETHE_DATA_DIR.
    """
    os.umask(0o077)  # files are for their owner only
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core dump would contain keys and identifiers
    try:
        settings = load_settings()
        if data_dir is not None:
            settings = settings.model_copy(update={"data_dir": data_dir})
        tracing.check(settings)
        _check_storage(settings)
    except SettingsError as problem:
        raise refuse(str(problem)) from None
    logging.configure(settings)
    return settings


@contextmanager
def existing_installation(data_dir: Path | None = None) -> Iterator[Services]:
    """Provide the services of an installation that exists already. Nothing is created.

    In the wrong folder, and if the database cannot be used, the command exits with one line that says where
    it looked.
    """
    settings = settings_or_exit(data_dir)
    if (missing := missing_database(settings)) is not None:
        raise refuse(missing)
    services = Services(settings, creates_data_dir=False)
    try:
        with services.database.reading() as session:
            behind = schema.is_behind(session.connection())
        if behind:
            raise refuse(f"the database {database_place(settings)} is not up to date; run `lethe migrate`")
        with audit_log.acting_as(audit_log.operator()):
            yield services
    except SQLAlchemyError as problem:
        raise refuse(describe_database_error(settings, problem)) from None
    finally:
        services.close()


def missing_database(settings: Settings) -> str | None:
    """Return where an SQLite database was looked for and not found, and what to do. None if there is one."""
    file = sqlite_file(settings)
    if file is None or file.is_file():
        return None
    return (
        f"there is no Lethe database at {file}. Change to the folder in which you run `lethe up`, pass "
        "--data-dir, or set LETHE_DATA_DIR or LETHE_DATABASE_URL. `lethe up` creates a new installation."
    )


def sqlite_file(settings: Settings) -> Path | None:
    """Return the file of an SQLite database, or None for a database on a server."""
    url = make_url(settings.database)
    return Path(url.database or "").absolute() if url.get_backend_name() == "sqlite" else None


def database_place(settings: Settings) -> str:
    """Return where the database is, without a password."""
    file = sqlite_file(settings)
    return str(file) if file is not None else make_url(settings.database).render_as_string()


def describe_database_error(settings: Settings, problem: SQLAlchemyError) -> str:
    """Say in one line that the database failed. The driver's own message might quote rows."""
    place = database_place(settings)
    if isinstance(problem, OperationalError):
        return f"the database {place} cannot be reached; check that it is running, and LETHE_DATABASE_URL"
    return (
        f"the database {place} cannot be used; check that LETHE_DATABASE_URL names a Lethe database, then "
        "run `lethe migrate`"
    )


def _check_storage(settings: Settings) -> None:
    if missing := missing_package(settings.storage):
        raise SettingsError(f"LETHE_STORAGE_URL: {missing}")


def check_deployment_key(services: Services) -> None:
    """Exit if the deployment key is missing or wrong. Without a database, the check comes later."""
    try:
        _ = services.vault
    except KeyProblem as problem:
        raise refuse(str(problem)) from None
    except SQLAlchemyError as problem:
        log.warning(
            "the database is not available; the deployment key is checked later",
            problem=type(problem).__name__,
        )

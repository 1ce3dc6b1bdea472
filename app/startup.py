"""How every server verb begins: settings, or one line and exit 2."""

import os
import resource

import typer
from rich.console import Console
from sqlalchemy.exc import SQLAlchemyError

from app import logs, tracing
from app.bootstrap import Services
from app.settings import Settings, SettingsError, load_settings
from app.storage import missing_extra
from app.vault import KeyProblem

log = logs.get("startup")


def refuse(message: str) -> typer.Exit:
    """One line on standard error, exit 2."""
    Console(stderr=True).print(f"lethe: {message}", markup=False, highlight=False, soft_wrap=True)
    return typer.Exit(2)


def settings_or_exit() -> Settings:
    os.umask(0o077)  # files hold what is its owner's alone
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core dump would hold keys and identifiers
    try:
        settings = load_settings()
        tracing.check(settings)
        _check_storage(settings)
    except SettingsError as problem:
        raise refuse(str(problem)) from None
    logs.configure(settings)
    return settings


def _check_storage(settings: Settings) -> None:
    if missing := missing_extra(settings.storage):
        raise SettingsError(f"LETHE_STORAGE_URL: {missing}")


def check_deployment_key(services: Services) -> None:
    """Exit rather than serve with a key that is missing or wrong; a database that is away is waited for."""
    try:
        _ = services.vault
    except KeyProblem as problem:
        raise refuse(str(problem)) from None
    except SQLAlchemyError as problem:
        log.warning("database away, the deployment key is checked later", problem=type(problem).__name__)

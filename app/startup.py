"""How every server verb begins: settings, or one line and exit 2."""

import os
import resource

import typer
from rich.console import Console
from sqlalchemy.exc import SQLAlchemyError

from app import logs
from app.bootstrap import Services
from app.settings import Settings, SettingsError, load_settings
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
    except SettingsError as problem:
        raise refuse(str(problem)) from None
    logs.configure(settings)
    return settings


def check_deployment_key(services: Services) -> None:
    """Exit rather than serve with a key that is missing or wrong; a database that is away is waited for."""
    try:
        _ = services.vault
    except KeyProblem as problem:
        raise refuse(str(problem)) from None
    except SQLAlchemyError as problem:
        log.warning("database away, the deployment key is checked later", problem=type(problem).__name__)

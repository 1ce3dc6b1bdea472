"""How every server verb begins: settings, or one line and exit 2."""

import typer
from rich.console import Console

from app import logs
from app.settings import Settings, SettingsError, load_settings


def refuse(message: str) -> typer.Exit:
    """One line on standard error, exit 2."""
    Console(stderr=True).print(f"lethe: {message}", markup=False, highlight=False, soft_wrap=True)
    return typer.Exit(2)


def settings_or_exit() -> Settings:
    try:
        settings = load_settings()
    except SettingsError as problem:
        raise refuse(str(problem)) from None
    logs.configure(settings)
    return settings

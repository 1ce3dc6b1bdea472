"""The checks that `lethe doctor` makes on the machine of an installation. They read and change nothing."""

import os
import shutil
import stat
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path

from redis.exceptions import RedisError
from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError

from app.core import vault
from app.core.clock import now
from app.core.queue import socket_path
from app.core.settings import SettingsError, load_settings
from app.core.storage import missing_package
from app.core.vault import KeyProblem
from app.db import schema, signing_keys
from app.db.deployment import Deployment, vault_for
from app.db.tables import WorkerSeen
from app.services import Services
from app.startup import database_place, describe_database_error, missing_database, refuse
from lethe.certificate.keys import SigningKey

LEAST_FREE_BYTES = 1 << 30
LARGEST_SKEW = timedelta(seconds=5)


class State(StrEnum):
    """How a check ended."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    """The outcome of one check: what is the case, and what to do if it is not as it should be."""

    check: str
    state: State
    detail: str
    remedy: str = ""


def examine(data_dir: Path | None = None, *, required: bool = True) -> list[Finding]:
    """Check the installation that the settings describe, and return what was found.

    If there is no installation here, exit with one line that says where it was looked for. Unless it is
    `required`: then return nothing.
    """
    try:
        settings = load_settings()
    except SettingsError as problem:
        return [_problem("settings", str(problem), "Correct this variable. docs/settings.md lists them all.")]
    if package := missing_package(settings.storage):
        return [_problem("settings", f"LETHE_STORAGE_URL: {package}", "Install it, or change the setting.")]
    if data_dir is not None:
        settings = settings.model_copy(update={"data_dir": data_dir})
    if (missing := missing_database(settings)) is not None:
        if required:
            raise refuse(missing)
        return []
    services = Services(settings, creates_data_dir=False)
    try:
        return [
            _ok("settings", f"data folder {settings.data_dir.absolute()}"),
            *(check(services) for check in CHECKS),
        ]
    finally:
        services.close()


def _database(services: Services) -> Finding:
    try:
        with services.database.reading() as session:
            behind = schema.is_behind(session.connection())
    except SQLAlchemyError as problem:
        message, _, remedy = describe_database_error(services.settings, problem).partition("; ")
        return _problem("database", message, f"{remedy[:1].upper()}{remedy[1:]}.")
    place = database_place(services.settings)
    if behind:
        return _problem("database", f"{place} is older than this version", "Run `lethe migrate`.")
    return _ok("database", place)


def _queue(services: Services) -> Finding:
    settings = services.settings
    embedded = not settings.redis_url
    start = (
        "Start the service with `lethe up`." if embedded else "Start the server, or check LETHE_REDIS_URL."
    )
    if embedded and not socket_path(settings).exists():
        return _problem("queue", "the private queue server is not running", start)
    try:
        services.redis.ping()
    except (RedisError, OSError) as problem:
        return _problem("queue", f"the queue server does not answer ({type(problem).__name__})", start)
    return _ok("queue", "the queue server answers")


def _storage(services: Services) -> Finding:
    settings = services.settings
    if not settings.storage_url:
        folder = settings.data_dir / "storage"
        place = folder if folder.exists() else settings.data_dir
        if os.access(place, os.W_OK):
            return _ok("storage", f"{folder.absolute()} can be written")
        return _problem(
            "storage", f"{place.absolute()} cannot be written", "Give this user write access to the folder."
        )
    try:
        services.storage.exists("probe")
    except Exception as problem:  # whatever the storage raises, it cannot be used
        return _problem(
            "storage",
            f"{settings.storage_url} cannot be read ({type(problem).__name__})",
            "Check LETHE_STORAGE_URL, LETHE_STORAGE_ENDPOINT and the credentials of the storage.",
        )
    return _ok("storage", f"{settings.storage_url} can be read")


def _worker(services: Services) -> Finding:
    start = "Start one with `lethe worker`, or run everything with `lethe up`."
    try:
        with services.database.reading() as session:
            seen = session.scalar(select(func.max(WorkerSeen.seen_at)))
    except SQLAlchemyError:
        return _problem("worker", "unknown, because the database cannot be read", "Fix the database first.")
    if seen is None:
        return _problem("worker", "no worker has ever run on this database", start)
    silent = now() - _aware(seen)
    if silent > timedelta(seconds=services.settings.dead_after):
        return _problem(
            "worker", f"the last sign of a worker was at {_aware(seen):%Y-%m-%d %H:%M} UTC", start
        )
    return _ok("worker", "a worker sent a heartbeat lately")


def _clock(services: Services) -> Finding:
    """Compare the clock with that of the database's server, and with the last heartbeat of a worker."""
    try:
        with services.database.reading() as session:
            theirs = now() if services.database.is_sqlite else _aware(session.scalar(select(func.now())))
            seen = session.scalar(select(func.max(WorkerSeen.seen_at)))
    except SQLAlchemyError:
        return _problem("clock", "unknown, because the database cannot be read", "Fix the database first.")
    ahead = max(abs(now() - theirs), (_aware(seen) - now()) if seen is not None else timedelta())
    if ahead > LARGEST_SKEW:
        return _problem(
            "clock",
            f"the clocks of this machine and of the service differ by {ahead.total_seconds():.0f} s",
            "Synchronise the clocks of all machines, for example with chrony.",
        )
    return _ok("clock", f"{now():%Y-%m-%d %H:%M:%S} UTC")


def _keys(services: Services) -> Finding:
    """Check the deployment key and, if it is on this machine, the signing key."""
    settings = services.settings
    deployment, signing = settings.deployment_key_path, settings.signing_key_path
    try:
        with services.database.reading() as session:
            row, current = session.get(Deployment, 1), signing_keys.current_key(session)
        if row is None and not deployment.exists():
            return Finding("keys", State.WARNING, "no deployment key yet; the service creates or needs one")
        vault.load(deployment)
        if row is not None:
            vault_for(settings, row)
        if current is not None and signing.exists():
            signer = SigningKey.from_pem(vault.read_key(signing, "signing key"))
            if signer.key_id != current.key_id:
                return _problem(
                    "keys",
                    f"the signing key {signing} is not the one in use",
                    "Put the key in use there, or run `lethe worker --rotate-signing-key`.",
                )
    except SQLAlchemyError:
        return _problem("keys", "unknown, because the database cannot be read", "Fix the database first.")
    except (KeyProblem, ValueError) as problem:
        return _problem("keys", str(problem), "Put the right key in place.")
    return _private([deployment, *([signing] if signing.exists() else [])])


def _private(files: list[Path]) -> Finding:
    loose = [file for file in files if stat.S_IMODE(file.stat().st_mode) & 0o077]
    if loose:
        names = " and ".join(str(file) for file in loose)
        return Finding(
            "keys",
            State.WARNING,
            f"other users of this machine can read {names}",
            f"Run: chmod 600 {' '.join(str(file) for file in loose)}",
        )
    return _ok("keys", "present, private and right for this database")


def _disk(services: Services) -> Finding:
    folder = services.settings.data_dir
    while not folder.exists():
        folder = folder.absolute().parent
    free = shutil.disk_usage(folder).free
    text = f"{free / (1 << 30):.1f} GiB free at {folder.absolute()}"
    if free < LEAST_FREE_BYTES:
        return _problem("disk", text, "Free some space, or move the data folder to a larger disk.")
    return _ok("disk", text)


def _aware(moment: datetime | None) -> datetime:
    assert moment is not None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _ok(check: str, detail: str) -> Finding:
    return Finding(check, State.OK, detail)


def _problem(check: str, detail: str, remedy: str) -> Finding:
    return Finding(check, State.PROBLEM, detail, remedy)


CHECKS: tuple[Callable[[Services], Finding], ...] = (
    _database,
    _queue,
    _storage,
    _worker,
    _clock,
    _keys,
    _disk,
)

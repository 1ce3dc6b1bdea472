"""Consistent dumps of the database while the service writes to it, and their restoration."""

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from psycopg.conninfo import make_conninfo
from sqlalchemy import inspect, text
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session

from app.db.session import Database
from app.services import Services

NAME = "database.dump"


class BackupError(Exception):
    """A backup cannot be made or restored. The message is one line that tells the operator what to do."""


@contextmanager
def snapshot(services: Services, target: Path) -> Iterator[Session]:
    """Dump the database to a file, and yield a session that reads exactly what is in the dump."""
    with (_sqlite if services.database.is_sqlite else _postgresql)(services, target) as session:
        yield session


@contextmanager
def _sqlite(services: Services, target: Path) -> Iterator[Session]:
    """Use VACUUM INTO, which copies live rows only and so leaves out everything that was deleted."""
    with services.database.engine.connect() as connection:
        raw = connection.connection.driver_connection
        assert raw is not None
        raw.execute("VACUUM INTO ?", (str(target),))
    target.chmod(0o600)
    working = target.with_suffix(".read")
    shutil.copyfile(target, working)  # opening the dump itself would change its bytes
    copy = Database(f"sqlite:///{working.absolute()}")
    try:
        with copy.reading() as session:
            yield session
    finally:
        copy.close()
        for file in working.parent.glob(f"{working.name}*"):
            file.unlink()


@contextmanager
def _postgresql(services: Services, target: Path) -> Iterator[Session]:
    with Session(services.database.engine) as session:
        session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
        exported = session.scalar(text("SELECT pg_export_snapshot()"))
        _run(services, "pg_dump", "--format=custom", f"--snapshot={exported}", f"--file={target}")
        yield session


def check_empty(services: Services, kind: str) -> None:
    """Raise `BackupError` unless the configured database is of this kind and empty."""
    if kind != ("sqlite" if services.database.is_sqlite else "postgresql"):
        raise BackupError(
            f"the backup is of a {kind} database, but LETHE_DATABASE_URL names another kind; change it"
        )
    if _sqlite_file(services).exists() if services.database.is_sqlite else _tables(services):
        raise BackupError("the database is not empty; point LETHE_DATABASE_URL at an empty one")


def load(services: Services, dump: Path) -> None:
    """Load a dump into an empty database, completely or not at all."""
    if services.database.is_sqlite:
        _load_sqlite(services, dump)
    else:
        options = ("--exit-on-error", "--single-transaction", "--no-owner", "--no-privileges")
        _run(services, "pg_restore", *options, str(dump))


def _tables(services: Services) -> list[str]:
    return inspect(services.database.engine).get_table_names()


def _sqlite_file(services: Services) -> Path:
    return Path(make_url(services.settings.database).database or "")


def _load_sqlite(services: Services, dump: Path) -> None:
    target = _sqlite_file(services)
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f"{target.name}.new")
    shutil.copyfile(dump, draft)
    draft.chmod(0o600)
    try:
        _check_sqlite(draft)
    except sqlite3.Error:
        draft.unlink()
        raise BackupError(
            "the database in the backup is damaged or was changed; use another backup"
        ) from None
    with draft.open("rb") as file:
        os.fsync(file.fileno())
    draft.replace(target)


def _check_sqlite(file: Path) -> None:
    """Raise `sqlite3.Error` unless the file is a sound database of Lethe."""
    with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        if connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
            raise sqlite3.DatabaseError
        connection.execute("SELECT version_num FROM alembic_version").fetchall()


def _run(services: Services, program: str, *options: str) -> None:
    executable = shutil.which(program)
    if executable is None:
        raise BackupError(f"{program} is not on PATH; install the client programs of your PostgreSQL")
    where, secret = connection_options(services)
    ended = subprocess.run(  # noqa: S603
        [executable, f"--dbname={where}", *options],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, **secret},
    )
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise BackupError(f"{program} failed: {last}")


def connection_options(services: Services) -> tuple[str, dict[str, str]]:
    """Return a libpq connection string and environment variables that connect as the service does.

    Options in the database's URL are kept, and variables in the environment still apply, in particular those
    for TLS. The password is passed in the environment, because a list of processes would show it.
    """
    engine = services.database.engine
    options = engine.dialect.create_connect_args(engine.url)[1]
    options = {name: value for name, value in options.items() if isinstance(value, str | int)}
    password = options.pop("password", None)
    return make_conninfo(**options), {"PGPASSWORD": str(password)} if password else {}

"""One consistent copy of the database while others write to it, and back."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from psycopg.conninfo import make_conninfo
from sqlalchemy import inspect, text
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session

from app.bootstrap import Services
from app.db.session import Database

NAME = "database.dump"


class BackupError(Exception):
    """The message is one line that an operator can act on."""


@contextmanager
def snapshot(services: Services, target: Path) -> Iterator[Session]:
    """Dump, and read what is in the dump."""
    with (_sqlite if services.database.is_sqlite else _postgresql)(services, target) as session:
        yield session


@contextmanager
def _sqlite(services: Services, target: Path) -> Iterator[Session]:
    """VACUUM INTO copies live rows only: no page that was freed, and so nothing that was deleted."""
    with services.database.engine.connect() as connection:
        raw = connection.connection.driver_connection
        assert raw is not None
        raw.execute("VACUUM INTO ?", (str(target),))
    target.chmod(0o600)
    working = target.with_suffix(".read")
    shutil.copyfile(target, working)  # opened, it would get a log of its own and other bytes
    copy = Database(f"sqlite:///{working.absolute()}")
    try:
        with copy.reading() as session:
            yield session
    finally:
        copy.close()
        for left in working.parent.glob(f"{working.name}*"):
            left.unlink()


@contextmanager
def _postgresql(services: Services, target: Path) -> Iterator[Session]:
    with Session(services.database.engine) as session:
        session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
        exported = session.scalar(text("SELECT pg_export_snapshot()"))
        _run(services, "pg_dump", "--format=custom", f"--snapshot={exported}", f"--file={target}")
        yield session


def check_empty(services: Services, kind: str) -> None:
    if kind != ("sqlite" if services.database.is_sqlite else "postgresql"):
        raise BackupError(f"the backup is of {kind}, LETHE_DATABASE_URL names another kind")
    if _sqlite_file(services).exists() if services.database.is_sqlite else _tables(services):
        raise BackupError("the database is not empty")


def load(services: Services, dump: Path) -> None:
    """Into a database that is empty, in one step."""
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
    with draft.open("rb") as file:
        os.fsync(file.fileno())
    draft.replace(target)


def _run(services: Services, program: str, *options: str) -> None:
    found = shutil.which(program)
    if found is None:
        raise BackupError(f"{program} is not on PATH: install the client programs of your PostgreSQL")
    where, secret = _connection(services)
    ended = subprocess.run(  # noqa: S603
        [found, f"--dbname={where}", *options],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, **secret},
    )
    if ended.returncode:
        last = (ended.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise BackupError(f"{program} failed: {last}")


def _connection(services: Services) -> tuple[str, dict[str, str]]:
    """As the service itself connects, with whatever the URL says and the environment adds (TLS above all).

    A password must not be seen in a list of processes: it goes another way.
    """
    engine = services.database.engine
    said = engine.dialect.create_connect_args(engine.url)[1]
    said = {name: value for name, value in said.items() if isinstance(value, str | int)}
    password = said.pop("password", None)
    return make_conninfo(**said), {"PGPASSWORD": str(password)} if password else {}

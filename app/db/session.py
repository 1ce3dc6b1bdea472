"""Database connections and sessions, on SQLite and PostgreSQL. Nothing else opens a session."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from sqlalchemy import Connection, Dialect, Engine, create_engine, event, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import make_url
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session
from sqlalchemy.pool import ConnectionPoolEntry

from app.db import binary_arrays
from app.db.deadlines import AnswerDeadline, BoundedConnection, DatabaseHangs
from app.db.types import Base

_READ_ONLY = "lethe_read_only"
_KEYED_HASH, _DEADLINE = "keyed_hash", "deadline"
LONG_STATEMENT_SECONDS = 600.0
# A host that loses its network or power does not close its connections. These options let both ends notice
# within about ten seconds. By default a client would wait a quarter of an hour for an answer, and the server
# would keep the locks of a lost client for two hours. Unix sockets ignore the options.
_KEEPALIVE_OF_CLIENT = {
    "connect_timeout": 10,
    "keepalives_idle": 4,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
_KEEPALIVE_OF_SERVER = (
    "SET tcp_keepalives_idle = 4; SET tcp_keepalives_interval = 2; SET tcp_keepalives_count = 3; "
    "SET tcp_user_timeout = 10000"
)


class KeyedHash(Protocol):
    """A hash under the deployment key (`Vault.keyed_hash`)."""

    def __call__(self, text: str, *, purpose: str) -> bytes: ...


class Database:
    """A database and its connection pool."""

    def __init__(
        self, url: str, keyed_hash: KeyedHash | None = None, answer_seconds: float | None = None
    ) -> None:
        """Connect lazily. Sessions hash with `keyed_hash` where a rule needs the deployment key.

        If `answer_seconds` is given, PostgreSQL has that long to answer each statement. SQLite runs in this
        process, and waits for 30 seconds at most while another process writes.
        """
        self.is_sqlite = url.startswith("sqlite")
        self._deadline = None if answer_seconds is None or self.is_sqlite else AnswerDeadline(answer_seconds)
        self.engine = _sqlite(url) if self.is_sqlite else _postgresql(url, self._deadline)
        self._readers = self.engine.execution_options(**{_READ_ONLY: True})
        self._info: dict[Any, Any] = {_KEYED_HASH: keyed_hash, _DEADLINE: self._deadline}

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """Open a transaction. It is committed when the block ends and rolled back if the block raises."""
        self._begin_to_wait()
        with Session(self.engine, expire_on_commit=False, info=self._info) as session, session.begin():
            yield session

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """Open a session for one consistent read. Do not keep it open while streaming a response."""
        self._begin_to_wait()
        with Session(self._readers, expire_on_commit=False, info=self._info) as session:
            yield session

    def autocommit(self) -> Connection:
        """Return a connection that begins no transaction by itself. The caller closes it."""
        self._begin_to_wait()
        return self.engine.connect().execution_options(isolation_level="AUTOCOMMIT")

    def check(self) -> None:
        """Raise an error if the database does not answer."""
        with self.reading() as session:
            session.execute(text("SELECT 1"))

    def forget_deleted_bytes(self) -> bool:
        """Move SQLite's write-ahead log into the database file, so that no copy of deleted rows remains.

        Return True if the log is empty now. A reader may keep it in use: call again later. PostgreSQL has
        nothing like it: deleted bytes remain there until they are overwritten (docs/security.md).
        """
        if not self.is_sqlite:
            return True
        with self.engine.connect() as connection:
            raw = connection.connection.driver_connection
            assert raw is not None
            busy, pages, moved = raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return not busy and pages == moved

    def _begin_to_wait(self) -> None:
        if self._deadline is None:
            return
        try:
            self._deadline.begin()
        except DatabaseHangs as problem:
            raise OperationalError(None, None, problem) from problem

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()


def keyed_hash(session: Session, text: str, *, purpose: str) -> bytes:
    """Hash a text under the deployment key of the session's database."""
    hash_text: KeyedHash | None = session.info.get(_KEYED_HASH)
    if hash_text is None:
        raise RuntimeError("this session's database was opened without the deployment key")
    return hash_text(text, purpose=purpose)


def allow_long_statements(session: Session) -> None:
    """Let the statements of this transaction take up to ten minutes, because they change many rows."""
    deadline: AnswerDeadline | None = session.info.get(_DEADLINE)
    if deadline is not None:
        session.execute(text(f"SET LOCAL statement_timeout = {math.ceil(LONG_STATEMENT_SECONDS * 1e3)}"))
        deadline.extend(LONG_STATEMENT_SECONDS)


def insert_if_absent(session: Session, table: type[Base], **values: Any) -> None:
    """Insert a row unless one with the same key exists (INSERT … ON CONFLICT DO NOTHING)."""
    insert = sqlite.insert if session.get_bind().dialect.name == "sqlite" else postgresql.insert
    session.execute(insert(table).values(**values).on_conflict_do_nothing())


def _postgresql(url: str, deadline: AnswerDeadline | None) -> Engine:
    """Create an engine. Connection options in the URL take precedence over ours."""
    url_options = make_url(url).query
    engine = create_engine(
        url,
        pool_pre_ping=True,
        pool_size=20,
        pool_timeout=30.0 if deadline is None else deadline.seconds,
        hide_parameters=True,
        connect_args={name: value for name, value in _KEEPALIVE_OF_CLIENT.items() if name not in url_options},
    )

    @event.listens_for(engine, "connect")
    def _configure(connection: Any, _: ConnectionPoolEntry) -> None:
        with connection.cursor() as cursor:
            cursor.execute(_KEEPALIVE_OF_SERVER)
            if deadline is not None:
                cursor.execute(f"SET statement_timeout = {math.ceil(deadline.seconds * 1e3)}")
        connection.commit()
        binary_arrays.register(connection)

    if deadline is not None:

        @event.listens_for(engine, "do_connect")
        def _connect(_: Dialect, __: ConnectionPoolEntry, arguments: Any, options: Any) -> BoundedConnection:
            return BoundedConnection.open(deadline, *arguments, **options)

    return engine


def _sqlite(url: str) -> Engine:
    # The driver must not begin transactions itself. Writers need BEGIN IMMEDIATE: two transactions that read
    # first and write later would fail with SQLITE_BUSY at once, without waiting.
    engine = create_engine(url, hide_parameters=True, connect_args={"timeout": 30, "isolation_level": None})

    @event.listens_for(engine, "connect")
    def _configure(connection: Any, _: ConnectionPoolEntry) -> None:
        for pragma in (
            "journal_mode=WAL",
            "synchronous=FULL",
            "foreign_keys=ON",
            "secure_delete=ON",
            "busy_timeout=30000",
        ):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        read_only = connection.get_execution_options().get(_READ_ONLY)
        connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")

    return engine

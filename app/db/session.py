"""The one place that opens a session, on SQLite and on PostgreSQL."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session
from sqlalchemy.pool import ConnectionPoolEntry

_READ_ONLY = "lethe_read_only"
# A host that loses its network or its power says no goodbye. Within about ten seconds both ends find out by
# themselves: else a part would wait a quarter of an hour for an answer, and the server keep the locks of the
# dead for two hours. Over a unix socket none of this means anything, and none of it is an error.
_LISTENING = {
    "connect_timeout": 10,
    "keepalives_idle": 4,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
_LISTENING_SERVER = (
    "SET tcp_keepalives_idle = 4; SET tcp_keepalives_interval = 2; SET tcp_keepalives_count = 3; "
    "SET tcp_user_timeout = 10000"
)


class Database:
    def __init__(self, url: str) -> None:
        self.is_sqlite = url.startswith("sqlite")
        self.engine = _sqlite(url) if self.is_sqlite else _postgresql(url)
        self._readers = self.engine.execution_options(**{_READ_ONLY: True})
        self.info: dict[str, Any] = {}
        """What every session carries in its `info`."""

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """One transaction: committed when the block ends, rolled back when it raises."""
        with Session(self.engine, expire_on_commit=False, info=self.info) as session, session.begin():
            yield session

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """One consistent read; never held across a stream."""
        with Session(self._readers, expire_on_commit=False, info=self.info) as session:
            yield session

    def check(self) -> None:
        with self.reading() as session:
            session.execute(text("SELECT 1"))

    def forget_deleted_bytes(self) -> bool:
        """SQLite: move the WAL into the file and empty it, so that overwritten rows exist nowhere.

        True when the WAL is empty. A reader may hold it open; the caller tries again.
        """
        if not self.is_sqlite:
            return True
        with self.engine.connect() as connection:
            raw = connection.connection.driver_connection
            assert raw is not None
            busy, pages, moved = raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return not busy and pages == moved

    def close(self) -> None:
        self.engine.dispose()


def _postgresql(url: str) -> Engine:
    """What the URL itself says about its connections goes first."""
    given = make_url(url).query
    engine = create_engine(
        url,
        pool_pre_ping=True,
        pool_size=20,
        hide_parameters=True,
        connect_args={name: value for name, value in _LISTENING.items() if name not in given},
    )

    @event.listens_for(engine, "connect")
    def _configure(connection: Any, _: ConnectionPoolEntry) -> None:
        with connection.cursor() as cursor:
            cursor.execute(_LISTENING_SERVER)
        connection.commit()

    return engine


def _sqlite(url: str) -> Engine:
    # The driver must not begin transactions by itself: writers need BEGIN IMMEDIATE, or two of them
    # that both read first would end in SQLITE_BUSY without any wait.
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

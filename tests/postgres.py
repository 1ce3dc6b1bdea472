"""PostgreSQL databases for tests: migrated once, emptied after a test and used again.

To create a database, the server copies hundreds of files. That takes a tenth of a second of processor time,
more than most tests. To empty one takes a hundredth.
"""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, create_engine, text
from sqlalchemy.engine import make_url

from app.core.settings import Settings
from app.db import schema
from app.services import Services

MOST_GROWTH = 2_000_000  # in bytes: emptied tables stay large, and would be slow to read

# A transaction that changes the schema leaves its number in a catalog. The statistics of the planner and
# settings of the database are counted as well.
SCHEMA = text(
    "SELECT "
    + ", ".join(
        f"(SELECT concat(count(*), ' ', max(xmin::text::bigint)) FROM {catalog})"
        for catalog in (
            *("pg_attribute", "pg_class", "pg_constraint", "pg_index", "pg_namespace", "pg_policy"),
            *("pg_proc", "pg_rewrite", "pg_sequence", "pg_statistic", "pg_trigger", "pg_type"),
        )
    )
    + ", (SELECT count(*) FROM pg_db_role_setting AS s JOIN pg_database AS d ON d.oid = s.setdatabase"
    " WHERE d.datname = current_database()), (SELECT count(*) FROM pg_largeobject_metadata)"
)
TABLES = text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
RESTART = text(
    "SELECT setval(format('%I.%I', schemaname, sequencename)::regclass, start_value, false)"
    " FROM pg_sequences WHERE last_value IS NOT NULL"
)
DISCONNECT = text("SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = :name")


class Postgres:
    """The databases of a server. Nobody else uses it at the same time."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._engine = create_engine(url, isolation_level="AUTOCOMMIT")
        self._connection = self._engine.connect()
        self._spare: list[str] = []
        self._template = f"template_{secrets.token_hex(8)}"
        self._execute(f"CREATE DATABASE {self._template}")
        services = Services(Settings(database_url=self.url_of(self._template)), creates_data_dir=False)
        schema.upgrade(services.database)
        services.close()
        with self._connected(self._template) as connection:
            tables = connection.execute(TABLES).scalars().all()
            self._filled = [table for table in tables if _rows(connection, table)]
            self._empty = [table for table in tables if table not in self._filled]
            self._state = self._look(connection)
        self._size = self._size_of(self._template)

    def close(self) -> None:
        """Drop what is left, and disconnect."""
        for name in (*self._spare, self._template):
            self._execute(f"DROP DATABASE {name} WITH (FORCE)")
        self._connection.close()
        self._engine.dispose()

    def url_of(self, database: str) -> str:
        """Return the URL of a database of this server."""
        return make_url(self._url).set(database=database).render_as_string(hide_password=False)

    def take(self) -> str:
        """Return the name of a migrated database without rows. No database has had this name before."""
        name = f"t_{secrets.token_hex(8)}"
        if self._spare:
            self._execute(f"ALTER DATABASE {self._spare.pop()} RENAME TO {name}")
        else:
            self._execute(f"CREATE DATABASE {name} TEMPLATE {self._template}")
        return name

    def give_back(self, name: str) -> None:
        """Empty a database for the next test, or drop it if a test changed more than its rows.

        It gets another name first, so that a process that outlives its test cannot connect any more.
        """
        spare = f"spare_{secrets.token_hex(8)}"
        self._connection.execute(DISCONNECT, {"name": name})
        self._execute(f"ALTER DATABASE {name} RENAME TO {spare}")
        if self._size_of(spare) - self._size < MOST_GROWTH and self._is_emptied(spare):
            self._spare.append(spare)
        else:
            self._execute(f"DROP DATABASE {spare} WITH (FORCE)")

    def _is_emptied(self, name: str) -> bool:
        """Delete all rows, and return whether the database is like its template again."""
        with self._connected(name) as connection:
            if self._look(connection) != self._state:
                return False
            # Neither foreign keys nor the trigger that protects the audit log are heeded.
            connection.execute(text("SET LOCAL session_replication_role = replica"))
            connection.execute(text("; ".join(f'DELETE FROM "{table}"' for table in self._empty)))
            connection.execute(RESTART)
        return True

    @contextmanager
    def _connected(self, name: str) -> Iterator[Connection]:
        engine = create_engine(self.url_of(name))
        with engine.begin() as connection:
            yield connection
        engine.dispose()

    def _look(self, connection: Connection) -> Any:
        """Return what must not change: the schema, and the rows that migrations wrote."""
        rows = [_rows(connection, table) for table in self._filled]
        return [*connection.execute(SCHEMA).one(), *rows]

    def _size_of(self, name: str) -> int:
        return int(self._connection.execute(text(f"SELECT pg_database_size('{name}')")).scalar_one())

    def _execute(self, statement: str) -> None:
        self._connection.execute(text(statement))


def _rows(connection: Connection, table: str) -> list[str]:
    return sorted(connection.execute(text(f'SELECT t::text FROM "{table}" AS t')).scalars())

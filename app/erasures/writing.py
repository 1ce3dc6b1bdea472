"""Rows of several tables in as few round trips as a database allows."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, cast

import psycopg
from sqlalchemy import Integer, LargeBinary, String, Uuid, insert
from sqlalchemy.orm import Session

from app.db.types import Base, UtcDateTime

Rows = Sequence[dict[str, Any]]
_ARRAYS = {Uuid: "uuid", String: "text", UtcDateTime: "timestamptz", Integer: "int", LargeBinary: "bytea"}


def insert_all(session: Session, *batches: tuple[type[Base], Rows]) -> None:
    """Parents before children. PostgreSQL: one statement for all, each column an array; its foreign keys are
    checked when the statement ends. SQLite has no round trips to save."""
    filled = [(table, rows) for table, rows in batches if rows]
    if not filled:
        return
    connection = session.connection()
    if connection.dialect.name != "postgresql":
        for table, rows in filled:
            connection.execute(insert(table), rows)
        return
    raw = cast("psycopg.Connection[Any]", connection.connection.driver_connection)
    statement = _statement(tuple((table, tuple(rows[0])) for table, rows in filled))
    raw.execute(
        statement,
        [[row[column] for row in rows] for _, rows in filled for column in rows[0]],
    )


@lru_cache(maxsize=64)
def _statement(shape: tuple[tuple[type[Base], tuple[str, ...]], ...]) -> str:
    """Made of our own tables' and columns' names; values are parameters."""
    inserts = [
        f"INSERT INTO {table.__tablename__} ({', '.join(columns)}) "  # noqa: S608
        f"SELECT * FROM unnest({', '.join(f'%s::{_array_of(table, column)}[]' for column in columns)})"
        for table, columns in shape
    ]
    *first, last = inserts
    steps = ", ".join(f"step{number} AS ({text})" for number, text in enumerate(first))
    return f"WITH {steps} {last}" if first else last


def _array_of(table: type[Base], column: str) -> str:
    kind = table.__table__.columns[column].type
    return next(name for known, name in _ARRAYS.items() if isinstance(kind, known))

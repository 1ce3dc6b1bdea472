"""Tests get a PostgreSQL database as if it were new, although most have been used by another test."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import OperationalError

from tests.postgres import MOST_GROWTH, Postgres


@contextmanager
def connected(postgres: Postgres, name: str) -> Iterator[Connection]:
    engine = create_engine(postgres.url_of(name))
    with engine.begin() as connection:
        yield connection
    engine.dispose()


def is_used_again(postgres: Postgres, statement: str) -> bool:
    """Run a statement in a database, give it back, and return whether the next test gets the same one."""
    number = text("SELECT oid FROM pg_database WHERE datname = current_database()")
    name = postgres.take()
    with connected(postgres, name) as connection:
        first = connection.execute(number).scalar_one()
        connection.execute(text(statement))
    postgres.give_back(name)
    name = postgres.take()
    with connected(postgres, name) as connection:
        second = connection.execute(number).scalar_one()
        assert connection.execute(text("SELECT count(*) FROM workers")).scalar_one() == 0
    postgres.give_back(name)
    return bool(first == second)


def test_a_database_comes_back_without_rows(postgres: Postgres) -> None:
    assert is_used_again(postgres, "INSERT INTO workers (name, seen_at) VALUES ('w', now())")


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE more (number integer)",
        "DROP INDEX ix_api_keys_tenant_id",
        "ALTER TABLE workers ADD COLUMN more integer",
        "UPDATE alembic_version SET version_num = 'other'",
        "ANALYZE",
        f"INSERT INTO workers SELECT 'w' || n, now() FROM generate_series(1, {MOST_GROWTH // 50}) AS n",
    ],
)
def test_a_database_of_which_more_was_changed_is_not_used_again(postgres: Postgres, statement: str) -> None:
    assert not is_used_again(postgres, statement)


def test_who_still_knows_the_name_cannot_connect(postgres: Postgres) -> None:
    name = postgres.take()
    postgres.give_back(name)
    with pytest.raises(OperationalError, match="does not exist"), connected(postgres, name):
        pass

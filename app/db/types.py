"""The base class of all tables, and the column types and constraints they share."""

from collections.abc import Iterable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy import JSON, CheckConstraint, DateTime, Dialect, MetaData, TypeDecorator, Uuid
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase


class UtcDateTime(TypeDecorator[datetime]):
    """A datetime that is timezone-aware in Python and UTC in the database.

    SQLite stores no time zone, so UTC is added when a value is read.
    """

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert a value to UTC on its way to the database. Reject naive datetimes."""
        del dialect
        if value is not None and value.tzinfo is None:
            raise ValueError("a datetime without a time zone cannot be stored")
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Make a value read from the database timezone-aware."""
        del dialect
        return None if value is None else value.replace(tzinfo=value.tzinfo or UTC).astimezone(UTC)


class Base(DeclarativeBase):
    """The base class of all tables. Constraints get predictable names, which migrations rely on."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {  # noqa: RUF012
        datetime: UtcDateTime(),
        UUID: Uuid(),
        dict[str, Any]: JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql"),
        list[Any]: JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql"),
    }


def one_of(column: str, states: Iterable[StrEnum]) -> CheckConstraint:
    """Return a constraint that the column holds a value of this enum."""
    values = ", ".join(f"'{state}'" for state in states)
    return CheckConstraint(f"{column} IN ({values})", name=column)

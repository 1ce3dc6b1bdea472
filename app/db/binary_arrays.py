"""Arrays in PostgreSQL's binary format, to insert many rows with one parameter per column.

The driver would turn every value into text and escape it, which takes longer than the insert itself. The
format is a header followed by each value with its length (PostgreSQL's `array_recv`).
"""

import struct
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar
from uuid import UUID

import psycopg
from psycopg.adapt import Dumper
from psycopg.pq import Format

_HEADER, _EMPTY = struct.Struct("!iiIii"), struct.Struct("!iiI")
_LENGTH, _UUID, _INTEGER = struct.Struct("!i"), struct.Struct("!i16s"), struct.Struct("!ii")
_TIMESTAMP = _BIG_INTEGER = struct.Struct("!iq")
_NULL = _LENGTH.pack(-1)
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class BinaryArray(bytes):
    """An encoded array. Each kind of element has a subclass, by which the driver knows the type."""

    sql_type: ClassVar[str]
    element_oid: ClassVar[int]
    array_oid: ClassVar[int]

    @staticmethod
    def encode_element(value: Any) -> bytes:
        """Return the length and the bytes of one value that is not null."""
        raise NotImplementedError

    @classmethod
    def of(cls, values: Sequence[Any]) -> "BinaryArray":
        """Encode values. None becomes null."""
        if not values:
            return cls(_EMPTY.pack(0, 0, cls.element_oid))
        encode = cls.encode_element
        elements = [_NULL if value is None else encode(value) for value in values]
        header = _HEADER.pack(1, int(_NULL in elements), cls.element_oid, len(values), 1)
        return cls(header + b"".join(elements))


class UuidArray(BinaryArray):
    """An array of `uuid`."""

    sql_type, element_oid, array_oid = "uuid[]", 2950, 2951

    @staticmethod
    def encode_element(value: UUID) -> bytes:
        """Return the 16 bytes of a UUID."""
        return _UUID.pack(16, value.bytes)


class TextArray(BinaryArray):
    """An array of `text`."""

    sql_type, element_oid, array_oid = "text[]", 25, 1009

    @staticmethod
    def encode_element(value: str) -> bytes:
        """Return a text in UTF-8, the encoding of every connection of the driver's default."""
        data = value.encode()
        return _LENGTH.pack(len(data)) + data


class BytesArray(BinaryArray):
    """An array of `bytea`."""

    sql_type, element_oid, array_oid = "bytea[]", 17, 1001

    @staticmethod
    def encode_element(value: bytes) -> bytes:
        """Return the bytes as they are."""
        return _LENGTH.pack(len(value)) + value


class IntegerArray(BinaryArray):
    """An array of `integer`, which has 32 bits."""

    sql_type, element_oid, array_oid = "integer[]", 23, 1007

    @staticmethod
    def encode_element(value: int) -> bytes:
        """Return the four bytes of an integer."""
        return _INTEGER.pack(4, value)


class BigIntegerArray(BinaryArray):
    """An array of `bigint`, which has 64 bits."""

    sql_type, element_oid, array_oid = "bigint[]", 20, 1016

    @staticmethod
    def encode_element(value: int) -> bytes:
        """Return the eight bytes of an integer."""
        return _BIG_INTEGER.pack(8, value)


class TimestampArray(BinaryArray):
    """An array of `timestamptz`. Datetimes must have a time zone."""

    sql_type, element_oid, array_oid = "timestamptz[]", 1184, 1185

    @staticmethod
    def encode_element(value: datetime) -> bytes:
        """Return the microseconds since the year 2000 in UTC."""
        return _TIMESTAMP.pack(8, (value - _EPOCH) // _MICROSECOND)


def register(connection: "psycopg.Connection[Any]") -> None:
    """Teach a connection to send these arrays as they are."""
    for dumper in _DUMPERS:
        connection.adapters.register_dumper(dumper.kind, dumper)


class _ArrayDumper(Dumper):
    format = Format.BINARY
    kind: ClassVar[type[BinaryArray]]

    def dump(self, obj: BinaryArray) -> bytes:
        return obj


def _dumper(kind: type[BinaryArray]) -> type[_ArrayDumper]:
    return type(f"{kind.__name__}Dumper", (_ArrayDumper,), {"oid": kind.array_oid, "kind": kind})


_KINDS = (UuidArray, TextArray, BytesArray, IntegerArray, BigIntegerArray, TimestampArray)
_DUMPERS = [_dumper(kind) for kind in _KINDS]

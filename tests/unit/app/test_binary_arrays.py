"""Arrays in PostgreSQL's binary format have the bytes that the server's own functions produce."""

from datetime import UTC, datetime
from uuid import UUID

from app.db.binary_arrays import (
    BigIntegerArray,
    BytesArray,
    IntegerArray,
    TextArray,
    TimestampArray,
    UuidArray,
)


def test_an_array_has_a_header_and_each_value_with_its_length() -> None:
    header = "0000000100000000000000170000000200000001"  # one dimension, no null, int4, two, from 1
    assert IntegerArray.of([7, -1]).hex() == header + "000000040000000700000004ffffffff"

    header = "0000000100000000000000140000000100000001"  # int8, one
    assert BigIntegerArray.of([2**40]).hex() == header + "000000080000010000000000"


def test_null_has_no_bytes_and_is_announced_in_the_header() -> None:
    header = "0000000100000001000000190000000200000001"
    assert TextArray.of(["é", None]).hex() == header + "00000002c3a9ffffffff"


def test_an_empty_array_has_no_dimension() -> None:
    assert BytesArray.of([]).hex() == "000000000000000000000011"


def test_times_are_microseconds_since_2000_and_ids_are_16_bytes() -> None:
    moment = datetime(2000, 1, 1, 0, 0, 1, 5, tzinfo=UTC)
    assert TimestampArray.of([moment])[-8:] == (1_000_005).to_bytes(8, "big")
    assert TimestampArray.of([datetime(1999, 12, 31, 23, 59, 59, tzinfo=UTC)])[-8:] == (-1_000_000).to_bytes(
        8, "big", signed=True
    )
    assert UuidArray.of([UUID(int=5)])[-16:] == (5).to_bytes(16, "big")

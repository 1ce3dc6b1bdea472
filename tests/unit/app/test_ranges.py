"""Byte ranges and digests of downloads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.gateway.errors import RangeNotSatisfiable
from app.gateway.models.downloads import parse_range, repr_digest


@pytest.mark.parametrize(
    ("header", "start", "length", "partial"),
    [
        (None, 0, 100, False),
        ("bytes=0-0", 0, 1, True),
        ("bytes=10-19", 10, 10, True),
        ("bytes=90-", 90, 10, True),
        ("bytes=90-500", 90, 10, True),
        ("bytes=-5", 95, 5, True),
        ("bytes=-500", 0, 100, True),
        ("bytes=-", 0, 100, False),
        ("bytes=1-2,4-5", 0, 100, False),
        ("items=1-2", 0, 100, False),
    ],
)
def test_ranges(header: str | None, start: int, length: int, partial: bool) -> None:
    part = parse_range(header, 100)
    assert (part.start, part.length, part.partial) == (start, length, partial)


@pytest.mark.parametrize("header", ["bytes=100-", "bytes=100-200", "bytes=-0", "bytes=9-3"])
def test_ranges_outside_the_file(header: str) -> None:
    with pytest.raises(RangeNotSatisfiable) as problem:
        parse_range(header, 100)
    assert problem.value.headers == {"Content-Range": "bytes */100"}


@given(st.text(max_size=40), st.integers(1, 10**12))
def test_no_header_gives_bytes_outside_the_file(header: str, size: int) -> None:
    try:
        part = parse_range(header, size)
    except RangeNotSatisfiable:
        return
    assert part.start >= 0
    assert part.start + part.length <= size


def test_digest_is_that_of_the_standard() -> None:
    assert repr_digest("00" * 32) == "sha-256=:" + "A" * 43 + "=:"

"""Byte ranges, ETags and digests of downloads."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.storage import Storage
from app.gateway.errors import RangeNotSatisfiable
from app.gateway.models.downloads import FileDownload, parse_range, repr_digest


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


@pytest.mark.parametrize("tags", ['"x",' * 10_000, '"', ",,,", 'W/"x"', "\u00e9" * 1000])
def test_etags_of_other_files_change_nothing(tmp_path: Path, tags: str) -> None:
    storage = Storage(f"file://{tmp_path}")
    file = storage.write("folder/file", [b"0123456789"])
    fresh = FileDownload(if_none_match=tags).send(storage, file, "f")
    assert (fresh.status_code, fresh.headers["content-length"]) == (200, "10")
    resumed = FileDownload(range="bytes=2-3", if_range=tags).send(storage, file, "f")
    assert (resumed.status_code, resumed.headers["content-length"]) == (200, "10"), "no piece of another file"
    own = FileDownload(if_none_match=f'{tags},"{file.sha256}"').send(storage, file, "f")
    assert own.status_code == 304

"""Byte ranges, ETags and digests of downloads."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.storage import Storage, Stored
from app.gateway.errors import FileDamaged, RangeNotSatisfiable
from app.gateway.models import downloads
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
        ("bytes=" + ",".join(["0-0"] * 5000), 0, 100, False),
        ("bytes=0-" + "9" * 18, 0, 100, True),
        ("bytes=0-" + "9" * 5000, 0, 100, False),
        ("bytes=-" + "9" * 5000, 0, 100, False),
        ("bytes=--1", 0, 100, False),
        ("bytes=1e1-20", 0, 100, False),
        ("bytes=0-1 ", 0, 100, False),
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


CONTENT = b"0123456789"
ETAG = f'"{hashlib.sha256(CONTENT).hexdigest()}"'


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(f"file://{tmp_path}")


@pytest.fixture
def stored(storage: Storage) -> Stored:
    return storage.write("weights", [CONTENT])


@pytest.mark.parametrize(
    ("headers", "status", "start"),
    [
        ({"if_none_match": ETAG}, 304, None),
        ({"if_none_match": f"W/{ETAG}"}, 304, None),
        ({"if_none_match": "*"}, 304, None),
        ({"if_none_match": ",".join(['"x"'] * 5000 + [ETAG])}, 304, None),
        ({"if_none_match": ETAG.strip('"')}, 200, "0"),
        ({"if_none_match": ""}, 200, "0"),
        ({"range": "bytes=2-3", "if_range": ETAG}, 206, "2"),
        ({"range": "bytes=2-3", "if_range": f"W/{ETAG}"}, 200, "0"),
        ({"range": "bytes=2-3", "if_range": '"another"'}, 200, "0"),
        ({"range": "bytes=99-", "if_range": '"another"'}, 200, "0"),
        ({"range": "bytes=99-", "if_none_match": ETAG}, 304, None),
    ],
)
def test_conditions_choose_what_is_sent(
    storage: Storage, stored: Stored, headers: dict[str, str], status: int, start: str | None
) -> None:
    answer = FileDownload(**headers).send(storage, stored, "w")
    assert answer.status_code == status
    assert answer.headers["ETag"] == ETAG
    if status == 206:
        assert answer.headers["Content-Range"] == f"bytes {start}-3/10"


def _missing(folder: Path) -> None:
    (folder / "weights").unlink()


def _shortened(folder: Path) -> None:
    (folder / "weights").write_bytes(CONTENT[:-1])


def _altered(folder: Path) -> None:
    (folder / "weights").write_bytes(CONTENT[::-1])


@pytest.mark.parametrize("damage", [_missing, _shortened, _altered])
@pytest.mark.parametrize("requested", [None, "bytes=0-1"])
def test_a_damaged_file_is_an_error_before_the_answer_begins(
    storage: Storage, stored: Stored, tmp_path: Path, damage: Callable[[Path], None], requested: str | None
) -> None:
    damage(tmp_path)
    with pytest.raises(FileDamaged) as problem:
        FileDownload(range=requested).send(storage, stored, "w")
    assert problem.value.status == 500
    assert "restore the file from a backup" in problem.value.detail


def test_of_a_large_file_the_length_is_checked(
    storage: Storage, stored: Stored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "DIGEST_CHECK_BYTES", 5)
    _altered(tmp_path)
    assert FileDownload().send(storage, stored, "w").status_code == 200
    _shortened(tmp_path)
    with pytest.raises(FileDamaged):
        FileDownload().send(storage, stored, "w")


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

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.storage import Storage, StorageError


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(f"file://{tmp_path}/root")


def test_what_is_written_is_read_with_its_digest(storage: Storage) -> None:
    stored = storage.write("a/b.bin", [b"one", b"", b"two"])
    assert (stored.sha256, stored.size) == (hashlib.sha256(b"onetwo").hexdigest(), 6)
    assert b"".join(storage.read("a/b.bin")) == b"onetwo"
    assert b"".join(storage.read("a/b.bin", 2, 3)) == b"etw"
    assert storage.list("a") == ["a/b.bin"]


def test_a_write_that_fails_leaves_nothing(storage: Storage, tmp_path: Path) -> None:
    def broken() -> Iterator[bytes]:
        yield b"half"
        raise RuntimeError("connection lost")

    with pytest.raises(RuntimeError):
        storage.write("a/b.bin", broken())
    assert not storage.exists("a/b.bin")
    assert [f for _, _, files in os.walk(tmp_path) for f in files] == []


def test_a_failed_overwrite_keeps_the_old_file(storage: Storage) -> None:
    storage.write("x", [b"old"])

    def broken() -> Iterator[bytes]:
        raise RuntimeError("lost")
        yield b""

    with pytest.raises(RuntimeError):
        storage.write("x", broken())
    assert b"".join(storage.read("x")) == b"old"


def test_deleting_twice_is_no_error(storage: Storage) -> None:
    storage.write("a/x", [b"1"])
    storage.delete("a/x")
    storage.delete("a/x")
    assert storage.list("a") == []


def test_a_missing_file_is_named(storage: Storage) -> None:
    with pytest.raises(StorageError, match="a/x"):
        storage.open("a/x")


@pytest.mark.parametrize(
    "path", ["../x", "a/../../x", "/etc/passwd", "a//b", "", ".", "a/.", "a\\..\\b", "a\x00b"]
)
def test_no_path_leaves_the_root(storage: Storage, path: str) -> None:
    with pytest.raises(StorageError):
        storage.write(path, [b""])


@given(st.text(max_size=30))
def test_whatever_is_accepted_lies_below_the_root(path: str) -> None:
    storage = Storage("file:///srv/lethe")
    try:
        full = storage._full(path)
    except StorageError:
        return
    assert os.path.normpath(full) == full
    assert full.startswith("/srv/lethe/")

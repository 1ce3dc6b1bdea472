"""The guarantees of the storage, in a folder and on a real S3 server."""

import hashlib
import os
import posixpath
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.storage import Storage, StorageError, StorageUnavailable, checked
from tests import s3_server

PATHS = ("a/x", "a/y/z", "a.chunks/1", "ab")


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[s3_server.Server]:
    folder = tmp_path_factory.mktemp("s3") / "buckets"
    folder.mkdir()
    with s3_server.serve(folder) as server:
        yield server


@pytest.fixture(params=["folder", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    if request.param == "folder":
        return Storage(f"file://{tmp_path}/root")
    server: s3_server.Server = request.getfixturevalue("s3")
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return Storage(f"s3://{server.bucket()}/some/prefix", server.url)


def test_what_is_written_is_read_with_its_digest(storage: Storage) -> None:
    stored = storage.write("a/b.bin", [b"one", b"", b"two"])
    assert (stored.sha256, stored.size) == (hashlib.sha256(b"onetwo").hexdigest(), 6)
    assert b"".join(storage.read("a/b.bin")) == b"onetwo"
    assert b"".join(storage.read("a/b.bin", 2, 3)) == b"etw"
    assert b"".join(storage.read("a/b.bin", 6)) == b""
    assert storage.list("a") == ["a/b.bin"]
    assert storage.exists("a/b.bin")


def test_names_that_appear_or_go_are_on_disk_before_anyone_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    original = os.fsync

    def seen(number: int) -> None:
        synced.append(Path(f"/proc/self/fd/{number}").readlink())
        original(number)

    monkeypatch.setattr(os, "fsync", seen)
    storage = Storage(f"file://{tmp_path}/root")
    storage.write("a/b/c", [b"x"])
    assert {tmp_path / "root" / "a" / "b", tmp_path / "root" / "a", tmp_path / "root"} <= set(synced)
    synced.clear()
    storage.delete("a/b/c")
    assert tmp_path / "root" / "a" / "b" in synced
    storage.delete("a")
    assert tmp_path / "root" in synced


def test_an_empty_file_is_a_file(storage: Storage) -> None:
    assert storage.write("a/empty", []).size == 0
    assert storage.list("a") == ["a/empty"]
    assert b"".join(storage.read("a/empty")) == b""


def broken() -> Iterator[bytes]:
    yield b"half"
    raise RuntimeError("connection lost")


def test_a_write_that_fails_leaves_nothing(storage: Storage) -> None:
    with pytest.raises(RuntimeError):
        storage.write("a/b.bin", broken())
    assert not storage.exists("a/b.bin")
    assert storage.list("a") == []


def test_a_folder_keeps_no_draft_of_a_failed_write(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        Storage(f"file://{tmp_path}/root").write("a/b.bin", broken())
    assert [f for _, _, files in os.walk(tmp_path) for f in files] == []


def test_a_failed_overwrite_keeps_the_old_file(storage: Storage) -> None:
    storage.write("x", [b"old"])
    with pytest.raises(RuntimeError):
        storage.write("x", broken())
    assert b"".join(storage.read("x")) == b"old"


def test_deleting_twice_is_no_error(storage: Storage) -> None:
    storage.write("a/x", [b"1"])
    storage.delete("a/x")
    storage.delete("a/x")
    assert storage.list("a") == []
    assert not storage.exists("a/x")


def test_deleting_and_listing_take_a_folder_whole_and_its_neighbours_not(storage: Storage) -> None:
    for path in PATHS:
        storage.write(path, [b"1"])
    assert storage.list("a") == ["a/x", "a/y/z"]
    storage.delete("a")
    assert storage.list("a") == []
    assert storage.list("a.chunks") == ["a.chunks/1"]
    assert storage.list("ab") == ["ab"]


@pytest.mark.parametrize("path", ["a/x", "b"])
def test_a_missing_file_is_named(storage: Storage, path: str) -> None:
    storage.write("b/below", [b"1"])
    with pytest.raises((StorageError, IsADirectoryError), match=path):
        storage.open(path)


def test_a_folder_that_is_gone_says_nothing_about_its_files(tmp_path: Path) -> None:
    storage = Storage(f"file://{tmp_path}/volume")
    with pytest.raises(StorageUnavailable, match="mount"):
        storage.open("models/1/weights")
    storage.write("another", [b"x"])
    with pytest.raises(StorageError, match="no file") as missing:
        storage.open("models/1/weights")
    assert not isinstance(missing.value, StorageUnavailable)


def test_it_can_be_sought_in(storage: Storage) -> None:
    storage.write("x", [bytes(range(100))])
    with storage.open("x") as file:
        assert file.seek(-10, os.SEEK_END) == 90
        assert file.read() == bytes(range(90, 100))
        file.seek(5)
        assert (file.read(2), file.tell()) == (b"\x05\x06", 7)


def test_it_can_be_checked(storage: Storage) -> None:
    storage.check()
    assert storage.list("probe") == []


BAD = ["../x", "a/../../x", "/etc/passwd", "a//b", "", ".", "a/.", "a\\..\\b", "a\x00b"]


@pytest.mark.parametrize("path", BAD)
def test_no_path_leaves_the_root(tmp_path: Path, path: str) -> None:
    storage = Storage(f"file://{tmp_path}/root")
    for use in (storage.open, storage.delete, storage.list, storage.exists):
        with pytest.raises(StorageError):
            use(path)
    with pytest.raises(StorageError):
        storage.write(path, [b""])


@given(st.text(max_size=30))
def test_whatever_is_accepted_lies_below_the_root(path: str) -> None:
    try:
        full = f"/srv/lethe/{checked(path)}"
    except StorageError:
        return
    assert posixpath.normpath(full) == full
    assert full.startswith("/srv/lethe/")

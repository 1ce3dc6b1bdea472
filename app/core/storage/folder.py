"""Files in a folder, or on whatever else fsspec can reach that is able to rename."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import IO

import fsspec

from app.clock import new_id
from app.storage import DRAFT


class Folder:
    def __init__(self, url: str) -> None:
        self._files, root = fsspec.core.url_to_fs(url, auto_mkdir=True)
        self._root = str(root).rstrip("/")

    def write(self, path: str, chunks: Iterable[bytes]) -> None:
        """A draft lies beside its target: whoever sweeps that folder finds what a killed process left."""
        target, draft = self._full(path), self._full(f"{path}.{new_id().hex}{DRAFT}")
        try:
            with self._files.open(draft, "wb") as file:
                for chunk in chunks:
                    file.write(chunk)
                _settle(file)
            self._files.makedirs(target.rpartition("/")[0], exist_ok=True)
            self._files.mv(draft, target)
            self._settle_names(target)
        except BaseException:
            if self._files.exists(draft):
                self._files.rm_file(draft)
            raise

    def open(self, path: str) -> IO[bytes]:
        file: IO[bytes] = self._files.open(self._full(path), "rb")
        return file

    def exists(self, path: str) -> bool:
        return bool(self._files.exists(self._full(path)))

    def list(self, prefix: str) -> Iterable[str]:
        full = self._full(prefix)
        if not self._files.exists(full):
            return []
        return [str(found)[len(self._root) + 1 :] for found in self._files.find(full)]

    def delete(self, path: str) -> None:
        full = self._full(path)
        if self._files.exists(full):
            self._files.rm(full, recursive=True)
            self._settle_names(full)

    def _full(self, path: str) -> str:
        return f"{self._root}/{path}"

    def _settle_names(self, full: str) -> None:
        """A name that appears or goes is on disk before SQL says so: it is an entry of its folder.

        The folders above are settled too, as far as the root: each may have been made for this one.
        """
        if "file" not in self._files.protocol:
            return
        folder = Path(full).parent
        while True:
            if folder.is_dir():
                _sync(folder)
            if folder == Path(self._root) or folder == folder.parent:
                return
            folder = folder.parent


def open_file(uri: str) -> IO[bytes]:
    files, path = fsspec.core.url_to_fs(uri)
    file: IO[bytes] = files.open(path, "rb")
    return file


def _sync(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _settle(file: IO[bytes]) -> None:
    """A local file must be on disk before SQL says that it exists."""
    file.flush()
    if "file" in getattr(getattr(file, "fs", None), "protocol", ()):
        os.fsync(file.fileno())

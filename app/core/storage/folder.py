"""Files in a folder, or in any other file system of fsspec that can rename files."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import IO

import fsspec

from app.core.clock import new_id
from app.core.storage import DRAFT, StorageUnavailable


class Folder:
    """The files below one folder, as `Files`."""

    def __init__(self, url: str) -> None:
        """Use the folder at a URL. It is created on the first write."""
        self._files, root = fsspec.core.url_to_fs(url, auto_mkdir=True)
        self._root = str(root).rstrip("/")

    def write(self, path: str, chunks: Iterable[bytes]) -> None:
        """Write a draft beside the target and rename it.

        If the process is killed, the draft is found by the next sweep of that folder.
        """
        target, draft = self._full(path), self._full(f"{path}.{new_id().hex}{DRAFT}")
        try:
            with self._files.open(draft, "wb") as file:
                for chunk in chunks:
                    file.write(chunk)
                _flush(file)
            self._files.makedirs(target.rpartition("/")[0], exist_ok=True)
            self._files.mv(draft, target)
            self._flush_names(target)
        except BaseException:
            if self._files.exists(draft):
                self._files.rm_file(draft)
            raise

    def open(self, path: str) -> IO[bytes]:
        """Open a file for reading and seeking. Raise `FileNotFoundError` if there is none.

        If the root folder itself is missing, this says nothing about the file: a volume may not be mounted.
        """
        try:
            file: IO[bytes] = self._files.open(self._full(path), "rb")
        except FileNotFoundError:
            if not self._files.exists(self._root):
                raise StorageUnavailable("the folder of the storage is missing; check its mount") from None
            raise
        return file

    def exists(self, path: str) -> bool:
        """Return whether there is a file or folder with this path."""
        return bool(self._files.exists(self._full(path)))

    def list(self, prefix: str) -> Iterable[str]:
        """Return the files at or below `prefix`, including drafts."""
        full = self._full(prefix)
        if not self._files.exists(full):
            return []
        return [str(path)[len(self._root) + 1 :] for path in self._files.find(full)]

    def delete(self, *paths: str) -> None:
        """Delete files or folders, then flush their names to disk together. Skip what does not exist."""
        deleted = []
        for full in map(self._full, paths):
            if self._files.exists(full):
                self._files.rm(full, recursive=True)
                deleted.append(full)
        self._flush_names(*deleted)

    def _full(self, path: str) -> str:
        return f"{self._root}/{path}"

    def _flush_names(self, *names: str) -> None:
        """Flush the folders that hold these names to disk, so that SQL never gets ahead of the file system.

        A name is an entry of its folder. The folders above it, up to the root, are flushed too, because each
        may have been created for this file.
        """
        if "file" not in self._files.protocol:
            return
        root = Path(self._root)
        folders = {folder for name in names for folder in Path(name).parents}
        for folder in sorted(folders, key=lambda folder: len(folder.parts), reverse=True):
            if folder.is_relative_to(root) and folder.is_dir():
                _flush_folder(folder)


def open_file(uri: str) -> IO[bytes]:
    """Open any file that fsspec can reach for reading."""
    files, path = fsspec.core.url_to_fs(uri)
    file: IO[bytes] = files.open(path, "rb")
    return file


def _flush_folder(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _flush(file: IO[bytes]) -> None:
    """Flush a local file to disk, before SQL says that it exists."""
    file.flush()
    if "file" in getattr(getattr(file, "fs", None), "protocol", ()):
        os.fsync(file.fileno())

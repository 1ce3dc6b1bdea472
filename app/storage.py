"""Files behind one small interface: atomic writes, a digest while writing, no path leaves the root."""

import hashlib
import math
import os
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import IO

import fsspec

from app.clock import new_id

CHUNK = 1 << 20
DRAFT = ".draft"
TRUSTED_SECONDS = 5.0
_SEGMENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")


class StorageError(Exception):
    pass


@dataclass(frozen=True)
class Stored:
    path: str
    sha256: str
    size: int


class Storage:
    def __init__(self, url: str) -> None:
        self._files, root = fsspec.core.url_to_fs(url, auto_mkdir=True)
        self._root = str(root).rstrip("/")
        self._trusted_until = -math.inf

    def write(self, path: str, chunks: Iterable[bytes]) -> Stored:
        """All or nothing: the bytes appear under `path` only when the last one is written.

        A draft lies beside its target, so that whoever sweeps that folder finds what a killed process left.
        """
        target, draft = self._full(path), self._full(f"{path}.{new_id().hex}{DRAFT}")
        digest, size = hashlib.sha256(), 0
        try:
            with self._files.open(draft, "wb") as file:
                for chunk in chunks:
                    digest.update(chunk)
                    size += len(chunk)
                    file.write(chunk)
                _settle(file)
            self._files.makedirs(target.rpartition("/")[0], exist_ok=True)
            self._files.mv(draft, target)
        except BaseException:
            if self._files.exists(draft):
                self._files.rm_file(draft)
            raise
        return Stored(path, digest.hexdigest(), size)

    def open(self, path: str) -> IO[bytes]:
        try:
            file: IO[bytes] = self._files.open(self._full(path), "rb")
        except FileNotFoundError:
            raise StorageError(f"no such file: {path}") from None
        return file

    def read(self, path: str, start: int = 0, length: int | None = None) -> Iterator[bytes]:
        with self.open(path) as file:
            file.seek(start)
            while length is None or length > 0:
                chunk = file.read(CHUNK if length is None else min(CHUNK, length))
                if not chunk:
                    return
                if length is not None:
                    length -= len(chunk)
                yield chunk

    def exists(self, path: str) -> bool:
        return bool(self._files.exists(self._full(path)))

    def list(self, prefix: str) -> list[str]:
        """Every file below `prefix`, as paths relative to the root."""
        full = self._full(prefix)
        if not self._files.exists(full):
            return []
        return sorted(str(found)[len(self._root) + 1 :] for found in self._files.find(full))

    def delete(self, path: str) -> None:
        """Deleting twice is not an error: purging must be safe to repeat."""
        full = self._full(path)
        if self._files.exists(full):
            self._files.rm(full, recursive=True)

    def check(self) -> None:
        """Raise when the storage cannot be written. Asked often, it tries only every few seconds."""
        if time.monotonic() < self._trusted_until:
            return
        probe = f"probe/{new_id()}"
        self.write(probe, [b"ok"])
        self.delete(probe)
        self._trusted_until = time.monotonic() + TRUSTED_SECONDS

    def _full(self, path: str) -> str:
        segments = path.split("/")
        if not all(_SEGMENT.fullmatch(segment) for segment in segments):
            raise StorageError(f"not a storage path: {path!r}")
        return "/".join([self._root, *segments])


def _settle(file: IO[bytes]) -> None:
    """A local file must be on disk before SQL says that it exists; object stores settle on close."""
    file.flush()
    if "file" in getattr(getattr(file, "fs", None), "protocol", ()):
        os.fsync(file.fileno())

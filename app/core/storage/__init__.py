"""The storage of weights and datasets, in a folder or on S3.

Writes are atomic and compute a digest on the way. No path leads out of the storage's root.
"""

import hashlib
import math
import os
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import IO, Protocol

from app.core.clock import new_id

CHUNK = 1 << 20
DRAFT = ".draft"
TRUSTED_SECONDS = 5.0
S3_REQUIREMENTS = ("botocore>=1.37", "s3fs>=2025.5")  # the extra `s3` in pyproject.toml
_SEGMENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")


class StorageError(Exception):
    """A file cannot be stored or read."""


class StorageUnavailable(StorageError):
    """The storage does not answer or refuses a request. This says nothing about the file itself."""


class Files(Protocol):
    """A place that stores files. Paths are relative to its root and already checked."""

    def write(self, path: str, chunks: Iterable[bytes]) -> None:
        """Write a file atomically: it appears under `path` only when its last byte is written."""

    def open(self, path: str) -> IO[bytes]:
        """Open a file for reading and seeking. Raise `FileNotFoundError` if there is none."""

    def exists(self, path: str) -> bool:
        """Return whether there is a file with this path."""

    def list(self, prefix: str) -> Iterable[str]:
        """List the files at or below `prefix`, and unfinished ones, whose names end in `DRAFT`."""

    def delete(self, *paths: str) -> None:
        """Delete these files, or everything below them, including old versions. Skip what does not exist."""


@dataclass(frozen=True)
class Stored:
    """A stored file with its digest and length."""

    path: str
    sha256: str
    size: int


class Storage:
    """A storage, in a folder or on S3."""

    def __init__(self, url: str, endpoint: str = "") -> None:
        """Use the storage at a URL. `endpoint` is the S3 server, if it is not the default one."""
        self._files = _open_files(url, endpoint)
        self._trusted_until = -math.inf

    def write(self, path: str, chunks: Iterable[bytes]) -> Stored:
        """Write a file atomically: it appears under `path` only when its last byte is written."""
        counted = _CountedChunks(chunks)
        self._files.write(checked(path), counted)
        return Stored(path, counted.digest.hexdigest(), counted.size)

    def open(self, path: str) -> IO[bytes]:
        """Open a file for reading and seeking. Raise `StorageError` if there is none."""
        try:
            return self._files.open(checked(path))
        except FileNotFoundError:
            raise StorageError(f"there is no file {path} in the storage") from None

    def read(self, path: str, start: int = 0, length: int | None = None) -> Iterator[bytes]:
        """Yield the bytes of a file from `start` on, up to `length`, in chunks of bounded size."""
        with self.open(path) as file:
            file.seek(start)
            while length is None or length > 0:
                chunk = file.read(CHUNK if length is None else min(CHUNK, length))
                if not chunk:
                    return
                if length is not None:
                    length -= len(chunk)
                yield chunk

    def size(self, path: str) -> int:
        """Return the length of a file in bytes. Raise `StorageError` if there is none."""
        with self.open(path) as file:
            return file.seek(0, os.SEEK_END)

    def exists(self, path: str) -> bool:
        """Return whether there is a file with this path."""
        return self._files.exists(checked(path))

    def list(self, prefix: str) -> list[str]:
        """Return the paths of all files at or below `prefix`, sorted. Unfinished ones end in `DRAFT`."""
        return sorted(self._files.list(checked(prefix)))

    def delete(self, *paths: str) -> None:
        """Delete files or folders. Deleting one twice is not an error, because a purge may be repeated."""
        self._files.delete(*(checked(path) for path in paths))

    def check(self) -> None:
        """Raise an error if the storage cannot be written. A recent success is trusted for a few seconds."""
        if time.monotonic() < self._trusted_until:
            return
        probe = f"probe/{new_id()}"
        self.write(probe, [b"ok"])
        self.delete(probe)
        self._trusted_until = time.monotonic() + TRUSTED_SECONDS


class _CountedChunks:
    """The same chunks; once they are consumed, with their digest and length."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks, self.digest, self.size = chunks, hashlib.sha256(), 0

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            self.digest.update(chunk)
            self.size += len(chunk)
            yield chunk


def checked(path: str) -> str:
    """Return the path if it stays below the root and is portable, else raise `StorageError`."""
    if not all(_SEGMENT.fullmatch(segment) for segment in path.split("/")):
        raise StorageError(f"{path!r} is not a valid storage path")
    return path


def open_uri(uri: str) -> IO[bytes]:
    """Open a file outside the storage for reading. The usual AWS variables configure access to S3."""
    if uri.startswith("s3://"):
        folder, _, name = uri.rpartition("/")
        return _open_files(folder, "").open(name)
    from app.core.storage.folder import open_file

    return open_file(uri)


def missing_package(url: str) -> str | None:
    """Return what to install before this URL can be used, or None if nothing is missing."""
    if url.startswith("s3://") and find_spec("s3fs") is None:
        packages = " ".join(repr(requirement) for requirement in S3_REQUIREMENTS)
        return f"an s3:// URL needs packages that are not installed: pip install {packages}"
    return None


def _open_files(url: str, endpoint: str) -> Files:
    if url.startswith("s3://"):
        from app.core.storage.s3 import S3Files  # imported here, because few installations need aiobotocore

        return S3Files(url, endpoint)
    from app.core.storage.folder import Folder

    return Folder(url)

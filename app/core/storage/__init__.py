"""Files behind one small interface: atomic writes, a digest while writing, no path leaves the root."""

import hashlib
import math
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import IO, Protocol

from app.clock import new_id

CHUNK = 1 << 20
DRAFT = ".draft"
TRUSTED_SECONDS = 5.0
_SEGMENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")


class StorageError(Exception):
    pass


class StorageAway(StorageError):
    """The storage does not answer, or refuses; nothing is said of the file."""


class Files(Protocol):
    """Where the bytes are kept. Paths are relative to a root, and checked already."""

    def write(self, path: str, chunks: Iterable[bytes]) -> None:
        """All or nothing: the bytes appear under `path` only when the last one is written."""

    def open(self, path: str) -> IO[bytes]:
        """To be read and sought in; FileNotFoundError when it is not there."""

    def exists(self, path: str) -> bool: ...

    def list(self, prefix: str) -> Iterable[str]:
        """Every file at or below `prefix`, and every unfinished one, whose name then ends in `DRAFT`."""

    def delete(self, path: str) -> None:
        """The file, or everything below; with whatever the place keeps of it besides. No error if absent."""


@dataclass(frozen=True)
class Stored:
    path: str
    sha256: str
    size: int


class Storage:
    def __init__(self, url: str, endpoint: str = "") -> None:
        self._files = _open_files(url, endpoint)
        self._trusted_until = -math.inf

    def write(self, path: str, chunks: Iterable[bytes]) -> Stored:
        """All or nothing: the bytes appear under `path` only when the last one is written."""
        counted = _Counted(chunks)
        self._files.write(checked(path), counted)
        return Stored(path, counted.digest.hexdigest(), counted.size)

    def open(self, path: str) -> IO[bytes]:
        try:
            return self._files.open(checked(path))
        except FileNotFoundError:
            raise StorageError(f"no such file: {path}") from None

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
        return self._files.exists(checked(path))

    def list(self, prefix: str) -> list[str]:
        """Every file below `prefix`, as paths relative to the root."""
        return sorted(self._files.list(checked(prefix)))

    def delete(self, path: str) -> None:
        """Deleting twice is not an error: purging must be safe to repeat."""
        self._files.delete(checked(path))

    def check(self) -> None:
        """Raise when the storage cannot be written. Asked often, it tries only every few seconds."""
        if time.monotonic() < self._trusted_until:
            return
        probe = f"probe/{new_id()}"
        self.write(probe, [b"ok"])
        self.delete(probe)
        self._trusted_until = time.monotonic() + TRUSTED_SECONDS


class _Counted:
    """The same chunks, with their digest and length when they are through."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks, self.digest, self.size = chunks, hashlib.sha256(), 0

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            self.digest.update(chunk)
            self.size += len(chunk)
            yield chunk


def checked(path: str) -> str:
    if not all(_SEGMENT.fullmatch(segment) for segment in path.split("/")):
        raise StorageError(f"not a storage path: {path!r}")
    return path


def open_uri(uri: str) -> IO[bytes]:
    """A file that is not Lethe's own, to be read; S3 as the usual AWS variables describe it."""
    if uri.startswith("s3://"):
        folder, _, name = uri.rpartition("/")
        return _open_files(folder, "").open(name)
    from app.storage.folder import open_file

    return open_file(uri)


def missing_extra(url: str) -> str | None:
    """What must be installed before this URL can be used."""
    if url.startswith("s3://") and find_spec("s3fs") is None:
        return "an s3:// URL needs the extra `s3`: pip install 'lethe[s3]'"
    return None


def _open_files(url: str, endpoint: str) -> Files:
    if url.startswith("s3://"):
        from app.storage.s3 import S3Files  # only here: it brings aiobotocore, which few need

        return S3Files(url, endpoint)
    from app.storage.folder import Folder

    return Folder(url)

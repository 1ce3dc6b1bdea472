"""Copies from elsewhere into Lethe's own storage."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from app import imports
from app.settings import Settings
from app.storage import CHUNK, Storage, StorageError, Stored, open_uri


class ImportFailed(Exception):
    """The message names no place and no content."""


def copy(settings: Settings, storage: Storage, uri: str, target: str) -> Stored:
    """Checked here once more: the worker does the reading, so the worker's own settings decide.

    Only what the source does is the import's failure; our own storage being away is the attempt's.
    """
    with _opened(uri, settings.import_roots) as source:
        return storage.write(target, _limited(source, settings.max_upload_bytes))


@contextmanager
def _opened(uri: str, roots: str) -> Iterator[IO[bytes]]:
    with _readable():
        source = open_uri(imports.check(uri, roots))
    with source:
        yield source


def _limited(source: IO[bytes], limit: int) -> Iterator[bytes]:
    taken = 0
    while chunk := _chunk_of(source):
        taken += len(chunk)
        if taken > limit:
            raise ImportFailed(f"it is longer than {limit} bytes")
        yield chunk


def _chunk_of(source: IO[bytes]) -> bytes:
    with _readable():
        return source.read(CHUNK)


@contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except imports.ImportRefused as problem:
        raise ImportFailed(str(problem)) from None
    except (OSError, ValueError, ImportError, StorageError) as problem:
        raise ImportFailed(f"it could not be read ({type(problem).__name__})") from None

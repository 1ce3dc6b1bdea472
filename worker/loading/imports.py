"""Copies from elsewhere into Lethe's own storage."""

from collections.abc import Iterator
from typing import IO

import fsspec

from app import imports
from app.settings import Settings
from app.storage import CHUNK, Storage, Stored


class ImportFailed(Exception):
    """The message names no place and no content."""


def copy(settings: Settings, storage: Storage, uri: str, target: str) -> Stored:
    """Checked here once more: the worker does the reading, so the worker's own settings decide."""
    try:
        files, path = fsspec.core.url_to_fs(imports.check(uri, settings.import_roots))
        with files.open(path, "rb") as source:
            return storage.write(target, _limited(source, settings.max_upload_bytes))
    except imports.ImportRefused as problem:
        raise ImportFailed(str(problem)) from None
    except (OSError, ValueError, ImportError) as problem:
        raise ImportFailed(f"it could not be read ({type(problem).__name__})") from None


def _limited(source: IO[bytes], limit: int) -> Iterator[bytes]:
    taken = 0
    while chunk := source.read(CHUNK):
        taken += len(chunk)
        if taken > limit:
            raise ImportFailed(f"it is longer than {limit} bytes")
        yield chunk

"""Resumable uploads and downloads of files, checked by their SHA-256 digest.

An upload is sent in pieces. It continues after the last piece that the service has, even if an earlier
process sent it.

A download is written to an unfinished file next to its target, and takes the final name only when its digest
is correct. The name of the unfinished file contains the ETag that `If-Range` needs, so a later process can
continue the download. The digest is computed from the complete file on disk.
"""

import base64
import glob
import hashlib
import io
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedRandom
from pathlib import Path
from typing import BinaryIO

import httpx

from lethe.client.errors import BadAnswer, Conflict, DownloadCorrupt, Forbidden, Invalid, LetheError, NotFound
from lethe.client.operations import Procedure, Reply, Request, Sleep, read_chunk
from lethe.client.responses import UploadedFile, UploadStatus
from lethe.client.transport import Retry, exchange, parse, unreachable

PIECE_SIZE = 8 << 20
MOST_REPOSITIONS = 5
Source = Path | str | bytes
OnProgress = Callable[[int, int], object]  # called with the bytes transferred so far and the total
_ETAG = re.compile(r'"([0-9a-f]{64})"')
_DIGEST = re.compile(r"(?:^|,)\s*sha-256=:([A-Za-z0-9+/=]{44}):\s*(?:,|$)")
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


def upload(
    url: str, source: Source, *, retry: Retry, on_progress: OnProgress | None
) -> Procedure[UploadedFile]:
    """Upload a file. Pieces that the service already has are not sent again."""
    with io.BytesIO(source) if isinstance(source, bytes) else Path(source).open("rb") as file:
        content = _Content(file)
        status = yield from _upload_status(url, retry)
        if status is not None and status.complete and status.sha256 == content.sha256:
            if on_progress is not None:
                on_progress(content.size, content.size)
            return UploadedFile(sha256=content.sha256, size=content.size)
        resumable = status is not None and not status.complete and status.total == content.size
        start = status.received if resumable and status is not None else 0
        try:
            return (yield from _send_pieces(url, content, start, retry, on_progress))
        except Invalid:
            if start == 0:
                raise
            # The digest is wrong: the earlier pieces came from another file of the same length.
            return (yield from _send_pieces(url, content, 0, retry, on_progress))


def _send_pieces(
    url: str, content: "_Content", start: int, retry: Retry, on_progress: OnProgress | None
) -> Procedure[UploadedFile]:
    repositions = 0
    while True:
        end = min(start + PIECE_SIZE, content.size)
        request = Request("PUT", url, content=content.read(start, end), headers=content.headers(start, end))
        try:
            reply = yield from exchange(request, retry)
        except Conflict as error:  # the service has received more or less than we thought
            received = error.problem.get("received")
            repositions += 1
            if not isinstance(received, int) or received == start or repositions > MOST_REPOSITIONS:
                raise
            start = min(received, content.size)
            continue
        if on_progress is not None:
            on_progress(end, content.size)
        if reply.response.status_code != 202:
            return parse(reply.response, UploadedFile)
        start = end


def _upload_status(url: str, retry: Retry) -> Procedure[UploadStatus | None]:
    """Return what the service has received, or None if that is nothing or the key may not read it."""
    try:
        reply = yield from exchange(Request("GET", url), retry)
    except (NotFound, Forbidden):
        return None
    return parse(reply.response, UploadStatus)


class _Content:
    """The content to upload. Only one piece of it is in memory at a time."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.sha256 = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # has readinto
        self.size = file.seek(0, io.SEEK_END)

    def read(self, start: int, end: int) -> bytes:
        self._file.seek(start)
        return self._file.read(end - start)

    def headers(self, start: int, end: int) -> dict[str, str]:
        headers = {"Content-Type": "application/octet-stream"}
        if end == self.size:
            digest = base64.b64encode(bytes.fromhex(self.sha256)).decode()
            headers["Repr-Digest"] = f"sha-256=:{digest}:"
        if (start, end) != (0, self.size):  # an empty file has no range
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{self.size}"
        return headers


def download(url: str, target: Path, *, retry: Retry, on_progress: OnProgress | None) -> Procedure[Path]:
    """Download `url` into the file `target`.

    Raises `DownloadCorrupt` if the digest is wrong. In that case nothing is left behind, and a file that
    already had the target's name stays as it was.
    """
    with _locked(target):
        resumed = _find_partial(target) is not None
        partial, correct = yield from _fetch(url, target, retry, on_progress)
        if not correct and resumed:  # the partial file of an earlier process may be wrong, so start over once
            partial.unlink()
            partial, correct = yield from _fetch(url, target, retry, on_progress)
        if not correct:
            partial.unlink()
            raise DownloadCorrupt(
                f"{target.name} was not saved, because the received bytes do not match the announced digest"
            )
        partial.replace(target)
    return target


def _fetch(
    url: str, target: Path, retry: Retry, on_progress: OnProgress | None
) -> Procedure[tuple[Path, bool]]:
    """Complete the partial file. Return it, and whether its digest is correct."""
    failures = 0
    while True:
        partial = _find_partial(target)
        reply = yield from _request_rest(url, partial, retry)
        start, total = _position(reply.response)
        partial = _partial_for(target, reply.response, partial)
        with partial.open("r+b" if partial.exists() else "w+b") as file:
            file.truncate(start)
            file.seek(start)
            try:
                yield from _copy(reply, file, total, on_progress)
            except httpx.TransportError as error:
                failures = 1 if file.tell() > start else failures + 1  # only count failures without progress
                if failures > retry.times:
                    raise unreachable(error) from error
            else:
                os.fsync(file.fileno())
                return partial, _is_correct(file, reply.response, total)
        yield Sleep(retry.pause(failures - 1))


def _request_rest(url: str, partial: Path | None, retry: Retry) -> Procedure[Reply]:
    """Request the bytes that follow the partial file, or the whole file if it has changed since."""
    headers = {"Accept-Encoding": "identity"}
    if partial is not None and partial.stat().st_size:
        headers |= {
            "Range": f"bytes={partial.stat().st_size}-",
            "If-Range": f'"{partial.suffixes[-2][1:]}"',
        }
    try:
        return (yield from exchange(Request("GET", url, headers=headers), retry, stream=True))
    except Invalid as error:
        if error.status != 416 or partial is None:
            raise
        partial.unlink()  # it is longer than the file, so it is of no use
        return (yield from _request_rest(url, None, retry))


def _copy(
    reply: Reply, file: BufferedRandom, total: int | None, on_progress: OnProgress | None
) -> Procedure[None]:
    while chunk := (yield from read_chunk(reply)):
        file.write(chunk)
        if on_progress is not None and total is not None:
            on_progress(file.tell(), total)


def _position(response: httpx.Response) -> tuple[int, int | None]:
    """Return where the body belongs in the file, and the length of the file."""
    if response.status_code == 206:
        matched = _RANGE.fullmatch(response.headers.get("content-range", ""))
        if matched is None:
            raise BadAnswer("the server sent a part of a file without saying which part")
        return int(matched[1]), int(matched[3])
    length = response.headers.get("content-length", "")
    return 0, int(length) if length.isdecimal() else None


def _is_correct(file: BufferedRandom, response: httpx.Response, total: int | None) -> bool:
    announced = _DIGEST.search(response.headers.get("repr-digest", ""))
    if announced is None:
        return False
    file.seek(0)
    digest = hashlib.file_digest(file, "sha256").digest()
    return digest == base64.b64decode(announced[1]) and total in (None, file.seek(0, io.SEEK_END))


def _partial_for(target: Path, response: httpx.Response, old: Path | None) -> Path:
    """Return the partial file for this ETag. One for another ETag is deleted: the content has changed."""
    etag = _ETAG.fullmatch(response.headers.get("etag", ""))
    partial = target.with_name(f"{target.name}.{etag[1] if etag else 'unnamed'}.part")
    if old is not None and old != partial:
        old.unlink(missing_ok=True)
    return partial


def _find_partial(target: Path) -> Path | None:
    for partial in target.parent.glob(f"{glob.escape(target.name)}.*.part"):
        if _ETAG.fullmatch(f'"{partial.suffixes[-2][1:]}"'):
            return partial
    return None


@contextmanager
def _locked(target: Path) -> Iterator[None]:
    """Keep a second download from writing to the same file."""
    try:
        import fcntl
    except ImportError:  # Windows: the caller must not start two downloads into one file
        yield
        return
    lock = target.with_name(f"{target.name}.lock")
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The previous owner may have deleted the file between our opening it and locking it.
            owned = lock.stat().st_ino == os.fstat(file.fileno()).st_ino
        except OSError:
            owned = False
        if not owned:
            raise LetheError(f"another download is writing {target.name}; try again when it has finished")
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)

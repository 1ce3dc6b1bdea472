"""A checkpoint comes down into a file beside its place, and takes the final name only when it is right.

Broken off, it goes on where it was, also in a later process: the unfinished file's name holds the ETag that
`If-Range` needs. The digest is taken from the file as it is on the disk, in the end.
"""

import base64
import glob
import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedRandom
from pathlib import Path

import httpx

from client.errors import BadAnswer, DownloadCorrupt, Invalid, LetheError
from client.flow import Answer, Flow, Request, Sleep, read
from client.requests import Retry, answered, unreachable
from client.upload import Tell

_ETAG = re.compile(r'"([0-9a-f]{64})"')
_DIGEST = re.compile(r"(?:^|,)\s*sha-256=:([A-Za-z0-9+/=]{44}):\s*(?:,|$)")
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


def download(url: str, to: Path, *, retry: Retry, tell: Tell | None) -> Flow[Path]:
    """Fetch `url` into the file `to`; raise DownloadCorrupt, and leave nothing, if it is not as announced."""
    with _locked(to):
        resumed = _unfinished(to) is not None
        part, right = yield from _fetch(url, to, retry, tell)
        if not right and resumed:  # what an earlier process left may be at fault: once more from the start
            part.unlink()
            part, right = yield from _fetch(url, to, retry, tell)
        if not right:
            part.unlink()
            raise DownloadCorrupt(f"{to.name}: the bytes that came do not have the digest that was announced")
        part.replace(to)
    return to


def _fetch(url: str, to: Path, retry: Retry, tell: Tell | None) -> Flow[tuple[Path, bool]]:
    """The unfinished file, complete now, and whether its digest is right."""
    broken = 0
    while True:
        part = _unfinished(to)
        answer = yield from _asked(url, part, retry)
        start, total = _place(answer.response)
        part = _name_for(to, answer.response, part)
        with part.open("r+b" if part.exists() else "w+b") as file:
            file.truncate(start)
            file.seek(start)
            try:
                yield from _copy(answer, file, total, tell)
            except httpx.TransportError as problem:
                broken = 1 if file.tell() > start else broken + 1  # who gets on may go on
                if broken > retry.times:
                    raise unreachable(problem) from problem
            else:
                os.fsync(file.fileno())
                return part, _is_right(file, answer.response, total)
        yield Sleep(retry.pause(broken - 1))


def _asked(url: str, part: Path | None, retry: Retry) -> Flow[Answer]:
    headers = {"Accept-Encoding": "identity"}
    if part is not None and part.stat().st_size:
        headers |= {"Range": f"bytes={part.stat().st_size}-", "If-Range": f'"{part.suffixes[-2][1:]}"'}
    try:
        return (yield from answered(Request("GET", url, headers=headers), retry, unread=True))
    except Invalid as problem:
        if problem.status != 416 or part is None:
            raise
        part.unlink()  # there is nothing after its end
        return (yield from _asked(url, None, retry))


def _copy(answer: Answer, file: BufferedRandom, total: int | None, tell: Tell | None) -> Flow[None]:
    while chunk := (yield from read(answer)):
        file.write(chunk)
        if tell is not None and total is not None:
            tell(file.tell(), total)


def _place(response: httpx.Response) -> tuple[int, int | None]:
    """Where the body belongs in the file, and how long the file is."""
    if response.status_code == 206:
        matched = _RANGE.fullmatch(response.headers.get("content-range", ""))
        if matched is None:
            raise BadAnswer("a partial answer without its place in the file")
        return int(matched[1]), int(matched[3])
    length = response.headers.get("content-length", "")
    return 0, int(length) if length.isdecimal() else None


def _is_right(file: BufferedRandom, response: httpx.Response, total: int | None) -> bool:
    announced = _DIGEST.search(response.headers.get("repr-digest", ""))
    if announced is None:
        return False
    file.seek(0)
    digest = hashlib.file_digest(file, "sha256").digest()
    return digest == base64.b64decode(announced[1]) and total in (None, file.seek(0, 2))


def _name_for(to: Path, response: httpx.Response, part: Path | None) -> Path:
    """Of the unfinished file of this very representation; one of another is of no use any more."""
    etag = _ETAG.fullmatch(response.headers.get("etag", ""))
    named = to.with_name(f"{to.name}.{etag[1] if etag else 'unnamed'}.part")
    if part is not None and part != named:
        part.unlink(missing_ok=True)
    return named


def _unfinished(to: Path) -> Path | None:
    for path in to.parent.glob(f"{glob.escape(to.name)}.*.part"):
        if _ETAG.fullmatch(f'"{path.suffixes[-2][1:]}"'):
            return path
    return None


@contextmanager
def _locked(to: Path) -> Iterator[None]:
    """Two downloads into one file would write through each other."""
    try:
        import fcntl
    except ImportError:  # no such locks here: one download at a time is up to the caller
        yield
        return
    lock = to.with_name(f"{to.name}.lock")
    with lock.open("w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            mine = lock.stat().st_ino == os.fstat(held.fileno()).st_ino  # not one just removed by its holder
        except OSError:
            mine = False
        if not mine:
            raise LetheError(f"another download writes {to.name}; try again when it is done")
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)

"""A file goes up in pieces: broken off, it goes on where it was, and its digest is checked at the end."""

import base64
import hashlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from client.answers import Transfer, Uploaded
from client.errors import Conflict, Forbidden, Invalid, NotFound
from client.flow import Flow, Request
from client.requests import Retry, answered, parsed

PIECE = 8 << 20
MOST_DETOURS = 5
Source = Path | str | bytes
Tell = Callable[[int, int], object]  # bytes done, bytes in all


def upload(url: str, source: Source, *, retry: Retry, tell: Tell | None) -> Flow[Uploaded]:
    """Send what is not there yet. Sent whole before, it is not sent again."""
    with io.BytesIO(source) if isinstance(source, bytes) else Path(source).open("rb") as file:
        content = _Content(file)
        there = yield from _there(url, retry)
        if there is not None and there.complete and there.sha256 == content.sha256:
            if tell is not None:
                tell(content.size, content.size)
            return Uploaded(sha256=content.sha256, size=content.size)
        fits = there is not None and not there.complete and there.total == content.size
        start = there.received if fits and there is not None else 0
        try:
            return (yield from _send(url, content, start, retry, tell))
        except Invalid:
            if start == 0:
                raise
            # What was there came from another file of the same length.
            return (yield from _send(url, content, 0, retry, tell))


def _send(url: str, content: "_Content", start: int, retry: Retry, tell: Tell | None) -> Flow[Uploaded]:
    detours = 0
    while True:
        end = min(start + PIECE, content.size)
        request = Request("PUT", url, content=content.read(start, end), headers=content.headers(start, end))
        try:
            answer = yield from answered(request, retry)
        except Conflict as problem:
            known = problem.problem.get("received")
            if not isinstance(known, int) or known == start or (detours := detours + 1) > MOST_DETOURS:
                raise
            start = min(known, content.size)
            continue
        if tell is not None:
            tell(end, content.size)
        if answer.response.status_code != 202:
            return parsed(answer.response, Uploaded)
        start = end


def _there(url: str, retry: Retry) -> Flow[Transfer | None]:
    """How much the server has; None when it has nothing, or does not tell this key."""
    try:
        answer = yield from answered(Request("GET", url), retry)
    except (NotFound, Forbidden):
        return None
    return parsed(answer.response, Transfer)


class _Content:
    """A file or bytes: size, digest, pieces. A piece is all of a file that is in memory."""

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

"""Downloads of stored files, whole or in ranges, with their digest."""

import base64
import hashlib
import re
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Header, Response
from fastapi.responses import StreamingResponse

from app.core import logging
from app.core.storage import Storage, StorageError, StorageUnavailable, Stored
from app.gateway.errors import FileDamaged, RangeNotSatisfiable

log = logging.get_logger("gateway")
MEDIA_TYPE = "application/octet-stream"
DIGEST_CHECK_BYTES = 1 << 20
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


def download_responses(media_type: str) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI entry for the responses of a download."""
    content = {media_type: {"schema": {"type": "string", "format": "binary"}}}
    return {
        200: {"description": "The whole file.", "content": content},
        206: {"description": "The requested range of the file.", "content": content},
        304: {"description": "The file you have is still current."},
    }


class FileDownload:
    """A `GET` of a file's content. The endpoint says which file."""

    def __init__(
        self,
        range: Annotated[str | None, Header(description="One byte range to resume a download.")] = None,  # noqa: A002
        if_range: Annotated[
            str | None, Header(description="Send the range only if the file still has this ETag.")
        ] = None,
        if_none_match: Annotated[str | None, Header(description="ETags of files that you have.")] = None,
    ) -> None:
        self.range, self.if_range, self.if_none_match = range, if_range, if_none_match

    def send(
        self, storage: Storage, file: Stored, filename: str, *, media_type: str = MEDIA_TYPE
    ) -> Response:
        """Return the response that streams the file. Its ETag is the SHA-256 digest."""
        etag = f'"{file.sha256}"'
        headers = {
            "ETag": etag,
            "Accept-Ranges": "bytes",
            "Repr-Digest": repr_digest(file.sha256),
            "Cache-Control": "private, no-cache",
            "Content-Disposition": f'attachment; filename="{filename}"',
        }
        if self.if_none_match is not None and matches(self.if_none_match, etag):
            return Response(status_code=304, headers=headers)
        part = parse_range(self.range if self.if_range in (None, etag) else None, file.size)
        headers["Content-Length"] = str(part.length)
        if part.partial:
            headers["Content-Range"] = f"bytes {part.start}-{part.start + part.length - 1}/{file.size}"
        check_stored(storage, file)
        chunks = storage.read(file.path, part.start, part.length)
        return StreamingResponse(chunks, 206 if part.partial else 200, headers, media_type)


Download = Annotated[FileDownload, Depends()]


def check_stored(storage: Storage, file: Stored) -> None:
    """Raise `FileDamaged` if the storage lacks a file, or holds another one in its place.

    This happens before the answer begins. Afterwards it could only be cut short. The digest of a large file
    is left to the receiver, who can compare it with `Repr-Digest`.
    """
    try:
        damaged = storage.size(file.path) != file.size
        if not damaged and file.size <= DIGEST_CHECK_BYTES:
            content = b"".join(storage.read(file.path))
            damaged = hashlib.sha256(content).hexdigest() != file.sha256
    except StorageUnavailable:
        raise
    except StorageError:
        damaged = True
    if damaged:
        log.error("a stored file is missing or damaged", path=file.path)
        raise FileDamaged(
            "The file is not in the storage as it was stored, so it is not sent. If a newer version was just "
            "published, fetch that one. Otherwise ask the operator to restore the file from a backup."
        )


def matches(if_none_match: str, etag: str) -> bool:
    """Return whether an `If-None-Match` header names this ETag (RFC 9110, 13.1.2).

    >>> matches('"a", W/"b"', '"b"'), matches("*", '"b"'), matches('"bb"', '"b"')
    (True, True, False)
    """
    tags = {tag.strip().removeprefix("W/") for tag in if_none_match.split(",")}
    return etag in tags or tags == {"*"}


@dataclass(frozen=True)
class ByteRange:
    """The part of a file to send. `partial` is False for the whole file."""

    start: int
    length: int
    partial: bool


def parse_range(header: str | None, size: int) -> ByteRange:
    """Parse a `Range` header with one byte range (RFC 9110, 14.2).

    Anything else means the whole file. Raises `RangeNotSatisfiable` if the range lies outside the file.
    """
    matched = _RANGE.fullmatch(header or "")
    if matched is None or matched.group() == "bytes=-":
        return ByteRange(0, size, partial=False)
    first, last = matched.groups()
    start = int(first) if first else max(size - int(last), 0)
    end = min(int(last), size - 1) if first and last else size - 1
    if start > end or (not first and int(last) == 0):
        raise RangeNotSatisfiable(
            f"The file has {size} bytes. Ask for a range within them.",
            headers={"Content-Range": f"bytes */{size}"},
        )
    return ByteRange(start, end - start + 1, partial=True)


def repr_digest(sha256: str) -> str:
    """Return the value of the `Repr-Digest` header (RFC 9530) for a SHA-256 digest in hex."""
    return f"sha-256=:{base64.b64encode(bytes.fromhex(sha256)).decode()}:"

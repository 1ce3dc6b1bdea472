"""Downloads of stored files, whole or in ranges, with their digest."""

import base64
import re
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Header, Response
from fastapi.responses import StreamingResponse

from app.core.storage import Storage, Stored
from app.gateway.errors import RangeNotSatisfiable

MEDIA_TYPE = "application/octet-stream"
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
        if self.if_none_match is not None and etag in (tag.strip() for tag in self.if_none_match.split(",")):
            return Response(status_code=304, headers=headers)
        part = parse_range(self.range if self.if_range in (None, etag) else None, file.size)
        headers["Content-Length"] = str(part.length)
        if part.partial:
            headers["Content-Range"] = f"bytes {part.start}-{part.start + part.length - 1}/{file.size}"
        chunks = storage.read(file.path, part.start, part.length)
        return StreamingResponse(chunks, 206 if part.partial else 200, headers, media_type)


Download = Annotated[FileDownload, Depends()]


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

"""CSV files for spreadsheets, and long files that are sent while they are read."""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from fastapi import Response
from fastapi.responses import StreamingResponse

CSV = "text/csv"
CHUNK_BYTES = 64 * 1024
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def attach_csv(columns: Sequence[str], rows: Iterable[Sequence[object]], file_name: str) -> Response:
    """Return rows as a CSV file that is sent while they are read, and that browsers save under this name."""
    return attach_lines(csv_lines(columns, rows), CSV, file_name)


def attach_lines(lines: Iterable[bytes], media_type: str, file_name: str) -> Response:
    """Return lines as a file that is sent while they are read, and that browsers save under this name."""
    headers = {"Content-Disposition": f'attachment; filename="{file_name}"'}
    return StreamingResponse(in_chunks(lines), media_type=media_type, headers=headers)


def csv_lines(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[bytes]:
    """Yield the header and one line of CSV per row."""
    yield format_line(columns).encode()
    for row in rows:
        yield format_line(row).encode()


def in_chunks(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Join lines to chunks of about `CHUNK_BYTES`.

    The server switches threads for every chunk that it sends, which takes longer than a line.
    """
    chunk = bytearray()
    for line in lines:
        chunk += line
        if len(chunk) >= CHUNK_BYTES:
            yield bytes(chunk)
            chunk.clear()
    if chunk:
        yield bytes(chunk)


def format_line(values: Sequence[object]) -> str:
    """Return one line of CSV. Text that a spreadsheet would run as a formula gets a leading apostrophe.

    >>> format_line(["a b", None, True, 3, "=1+1"]).strip()
    "a b,,yes,3,'=1+1"
    """
    line = io.StringIO()
    csv.writer(line).writerow([_text(value) for value in values])
    return line.getvalue()


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return value.isoformat(timespec="seconds")
    text = str(value)
    return f"'{text}" if isinstance(value, str) and text.startswith(_FORMULA) else text

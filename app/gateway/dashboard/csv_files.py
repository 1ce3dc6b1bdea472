"""CSV files for spreadsheets."""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from fastapi import Response
from fastapi.responses import StreamingResponse

from app.gateway.erasures.schemas import ErasureView

COLUMNS = (
    "request",
    "reference",
    "state",
    "on_hold",
    "people",
    "models",
    "received_at",
    "due_at",
    "extension_reason",
    "completed_at",
    "late_days",
    "jurisdiction",
    "reason",
)
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def describe_row(erasure: ErasureView) -> Sequence[object]:
    """Return a request as a row under `COLUMNS`."""
    return (
        erasure.id,
        erasure.reference,
        erasure.state,
        any(task.on_hold for task in erasure.tasks),
        erasure.subjects,
        " ".join(task.model for task in erasure.tasks),
        erasure.received_at,
        erasure.due_at,
        erasure.extension_reason,
        erasure.completed_at,
        erasure.late_days,
        erasure.jurisdiction,
        erasure.reason,
    )


def attach_csv(columns: Sequence[str], rows: Iterable[Sequence[object]], file_name: str) -> Response:
    """Return rows as a CSV file that is sent while they are read, and that browsers save under this name."""
    headers = {"Content-Disposition": f'attachment; filename="{file_name}"'}
    return StreamingResponse(_lines(columns, rows), media_type="text/csv", headers=headers)


def _lines(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    yield format_line(columns)
    for row in rows:
        yield format_line(row)


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

"""Reads the subjects of a bulk erasure from NDJSON or CSV, line by line."""

import csv
import json
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import TypeAdapter, ValidationError

from app.gateway.erasures.schemas import SubjectId
from app.gateway.errors import InvalidRequest, UnsupportedMedia
from lethe.identifiers import RULE

MAX_SUBJECTS = 1_000_000
MAX_LINE_BYTES = 4096
COLUMN = "subject_id"
_SUBJECT: TypeAdapter[str] = TypeAdapter(SubjectId)


def _media(example: str) -> dict[str, Any]:
    return {"schema": {"type": "string"}, "example": example}


BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/x-ndjson": _media('{"subject_id": "p-1"}\n{"subject_id": "p-2"}\n'),
            "text/csv": _media("subject_id\np-1\np-2\n"),
        },
    }
}


def read_subjects(content_type: str, chunks: Iterable[bytes]) -> Iterator[str]:
    """Yield the identifiers in a request body.

    Raises `InvalidRequest` with the number of a bad line, never with its content.
    """
    readers = {"application/x-ndjson": _ndjson, "text/csv": _csv}
    reader = readers.get(content_type.partition(";")[0].strip().lower())
    if reader is None:
        raise UnsupportedMedia(
            f"A bulk request cannot have this Content-Type. Send one of: {', '.join(readers)}."
        )
    number = 0
    for number, (line, value) in enumerate(reader(_lines(chunks)), 1):
        if number > MAX_SUBJECTS:
            raise InvalidRequest(
                f"The body has more than {MAX_SUBJECTS} subjects. Split it into several requests."
            )
        try:
            yield _SUBJECT.validate_python(value)
        except ValidationError:
            raise InvalidRequest(f"Line {line}: {COLUMN} is not an identifier. It {RULE}.") from None
    if not number:
        raise InvalidRequest("The body contains no subject. Send at least one line with an identifier.")


def _lines(chunks: Iterable[bytes]) -> Iterator[tuple[int, str]]:
    """Yield each line of text with its number. Lines have a maximum length."""
    rest, number = b"", 0
    for chunk in chunks:
        *complete, rest = (rest + chunk).split(b"\n")
        for line in complete:
            number += 1
            yield number, _text(line, number)
        if len(rest) > MAX_LINE_BYTES:
            raise InvalidRequest(f"Line {number + 1} is longer than {MAX_LINE_BYTES} bytes.")
    if rest:
        yield number + 1, _text(rest, number + 1)


def _text(line: bytes, number: int) -> str:
    if len(line) > MAX_LINE_BYTES:
        raise InvalidRequest(f"Line {number} is longer than {MAX_LINE_BYTES} bytes.")
    try:
        return line.removesuffix(b"\r").decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"Line {number} is not UTF-8.") from None


def _ndjson(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, Any]]:
    for number, line in lines:
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            raise InvalidRequest(f"Line {number} is not JSON.") from None
        yield number, entry.get(COLUMN) if isinstance(entry, dict) else entry


def _csv(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, Any]]:
    """Read CSV whose header names the column. Each line is one row: identifiers contain no line break."""
    column: int | None = None
    for number, line in lines:
        try:
            row = next(csv.reader([line], strict=True), [])
        except csv.Error:
            raise InvalidRequest(f"Line {number} is not CSV.") from None
        if column is None:
            names = [name.strip().removeprefix("\ufeff") for name in row]
            if COLUMN not in names:
                raise InvalidRequest(f"The first line must name the column {COLUMN}.")
            column = names.index(COLUMN)
        elif row:
            yield number, row[column] if column < len(row) else None

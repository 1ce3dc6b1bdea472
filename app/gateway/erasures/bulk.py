"""Erasures of more subjects than fit in one JSON body: NDJSON or CSV, read line by line."""

import csv
import json
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import TypeAdapter, ValidationError

from app.erasures.schemas import SubjectId
from app.errors import InvalidRequest, UnsupportedMedia

MOST_SUBJECTS = 1_000_000
LONGEST_LINE = 4096
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


def subjects(content_type: str, chunks: Iterable[bytes]) -> Iterator[str]:
    """The identifiers of a body; an InvalidRequest names the line at fault, never what it holds."""
    readers = {"application/x-ndjson": _ndjson, "text/csv": _csv}
    reader = readers.get(content_type.partition(";")[0].strip().lower())
    if reader is None:
        raise UnsupportedMedia(f"Send one of: {', '.join(readers)}.")
    number = 0
    for number, (line, value) in enumerate(reader(_lines(chunks)), 1):
        if number > MOST_SUBJECTS:
            raise InvalidRequest(f"At most {MOST_SUBJECTS} subjects are taken at once.")
        try:
            yield _SUBJECT.validate_python(value)
        except ValidationError:
            raise InvalidRequest(f"Line {line}: {COLUMN} is not an identifier.") from None
    if not number:
        raise InvalidRequest("There is no subject in the body.")


def _lines(chunks: Iterable[bytes]) -> Iterator[tuple[int, str]]:
    """Lines with their numbers; a line is text of bounded length."""
    rest, number = b"", 0
    for chunk in chunks:
        *complete, rest = (rest + chunk).split(b"\n")
        for line in complete:
            number += 1
            yield number, _text(line, number)
        if len(rest) > LONGEST_LINE:
            raise InvalidRequest(f"Line {number + 1} is longer than {LONGEST_LINE} bytes.")
    if rest:
        yield number + 1, _text(rest, number + 1)


def _text(line: bytes, number: int) -> str:
    if len(line) > LONGEST_LINE:
        raise InvalidRequest(f"Line {number} is longer than {LONGEST_LINE} bytes.")
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
    """A header names the column; a line is a row: an identifier holds no line break."""
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

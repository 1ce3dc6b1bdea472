"""Deletion lists of California's Delete Request and Opt-out Platform (DROP), matched on this machine.

A list is a CSV file with the columns `ID`, a work item, and `Hash`: the SHA-256 of a standardised identifier
in base64. The rules are those that the California Privacy Protection Agency published in 2026: an e-mail
address is trimmed and put in lower case, and of a phone number only the last ten digits count. The lists by
name, by vehicle and by device are not supported.
"""

import base64
import csv
import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from uuid import UUID

from lethe.certificate.errors import UnusableInput
from lethe.certificate.records import file_problem

ListType = Literal["email", "phone"]
SUBJECT = "subject_id"
PHONE_DIGITS = 10
_HASH = re.compile(r"[A-Za-z0-9+/]{43}=")


@dataclass(frozen=True)
class Match:
    """A work item of a list, and the people of yours whose identifier has its hash."""

    item: str
    subjects: tuple[str, ...]

    @property
    def shared(self) -> bool:
        """Whether the identifier belongs to several people."""
        return len(self.subjects) > 1


def standardise_email(text: str) -> str:
    """Return an e-mail address as DROP hashes it.

    >>> standardise_email(" A.Lice+tag@Example.COM ")
    'a.lice+tag@example.com'
    """
    return text.strip().lower()


def standardise_phone(text: str) -> str:
    """Return a phone number as DROP hashes it: its last ten digits.

    >>> standardise_phone("+1(415)555-9317")
    '4155559317'
    """
    return "".join(character for character in text if character in "0123456789")[-PHONE_DIGITS:]


STANDARDISE: Mapping[ListType, Callable[[str], str]] = {
    "email": standardise_email,
    "phone": standardise_phone,
}


def drop_hash(standardised: str) -> str:
    """Return the hash of a standardised identifier.

    >>> drop_hash(standardise_phone("+1(415)555-9317"))
    'vGM7y5n+hBXRSEAklhHDPCbysyNgYTmXdMcagGUOY8E='
    """
    return base64.b64encode(hashlib.sha256(standardised.encode()).digest()).decode()


def list_type(name: str) -> ListType | None:
    """Return the type of a list from its file name, such as `20260801_1234_Email.csv`.

    >>> list_type("20260801_1234_Email.csv"), list_type("20260801_1234_NDZ.csv")
    ('email', None)
    """
    words = re.split(r"[_.]", name.lower())
    if "email" in words:
        return "email"
    return "phone" if "phone" in words else None


def read_list(path: Path) -> list[tuple[str, str]]:
    """Return the work items of a list with their hashes. Raise `UnusableInput` with the line of a mistake."""
    items = []
    for number, row in _rows(path, ("ID", "Hash")):
        item, value = row["ID"].strip(), row["Hash"].strip()
        if not item or not _HASH.fullmatch(value):
            raise UnusableInput(f"{path}, line {number}: not a work item with a SHA-256 hash in base64")
        items.append((item, value))
    return items


def read_people(path: Path, kind: ListType) -> dict[str, tuple[str, ...]]:
    """Return your people by the hash of their identifier of this kind. Empty identifiers are left out."""
    people: dict[str, dict[str, None]] = defaultdict(dict)
    for number, row in _rows(path, (SUBJECT, kind)):
        if not row[SUBJECT]:
            raise UnusableInput(f"{path}, line {number}: {SUBJECT} is empty")
        standardised = STANDARDISE[kind](row[kind])
        if standardised:
            people[drop_hash(standardised)][row[SUBJECT]] = None
    return {value: tuple(subjects) for value, subjects in people.items()}


def match_list(items: Sequence[tuple[str, str]], people: Mapping[str, tuple[str, ...]]) -> list[Match]:
    """Return every work item with the people it is about, in the order of the list."""
    return [Match(item, people.get(value, ())) for item, value in items]


def write_report(
    path: Path, matches: Sequence[Match], chosen: Sequence[Match], erasure_id: UUID | str | None
) -> None:
    """Write one line per work item: whether it matched, whether it is shared, and the erasure it became.

    The report contains no identifier and no subject_id.
    """
    requested = {match.item for match in chosen} if erasure_id is not None else set()
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("ID", "matched", "shared", "erasure_id"))
        for match in matches:
            words = ("yes" if match.subjects else "no", "yes" if match.shared else "no")
            writer.writerow((match.item, *words, erasure_id if match.item in requested else ""))


def _rows(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the rows of a CSV file with their line numbers. Names of columns are compared without case."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            names = [name.strip().lower() for name in next(reader, [])]
            if missing := [name for name in columns if name.lower() not in names]:
                raise UnusableInput(f"{path}: the first line does not name the column {missing[0]}")
            places = {name: names.index(name.lower()) for name in columns}
            for row in reader:
                if row:
                    yield (
                        reader.line_num,
                        {name: row[place] if place < len(row) else "" for name, place in places.items()},
                    )
    except (OSError, UnicodeDecodeError) as error:
        raise UnusableInput(file_problem(error)) from None
    except csv.Error:
        raise UnusableInput(f"{path}, line {reader.line_num}: not CSV") from None

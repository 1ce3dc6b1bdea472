"""docs/public-fields.md lists exactly the fields that the code makes public, each with its reason."""

import re
from fnmatch import fnmatchcase

import pytest

from tests.docs.public_fields import PLACES, ROOT

PAGE = (ROOT / "docs/public-fields.md").read_text()


def rows(place: str) -> dict[str, str]:
    """Return the patterns in the table of a section, each with its reason."""
    section = PAGE.split(f"\n## {place}\n", 1)[1].split("\n## ", 1)[0]
    reasons: dict[str, str] = {}
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `") and len(cells) == 2:
            for pattern in re.findall(r"`([^`]+)`", cells[0]):
                assert pattern not in reasons, f"{pattern} is listed twice"
                reasons[pattern] = cells[1]
    return reasons


@pytest.mark.parametrize("place", PLACES)
def test_every_public_field_is_listed_once_with_a_reason(place: str) -> None:
    listed, fields = rows(place), PLACES[place]()
    assert fields
    for field in sorted(fields):
        matching = [pattern for pattern in listed if fnmatchcase(field, pattern)]
        assert len(matching) == 1, f"{place}: {field} is listed by {matching}"
        assert len(listed[matching[0]]) >= 6
    unused = [pattern for pattern in listed if not any(fnmatchcase(field, pattern) for field in fields)]
    assert not unused, f"{place}: no field is called {unused}"

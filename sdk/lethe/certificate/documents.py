"""Reading a TOML or JSON file that a person wrote, with errors that say where to look."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from lethe.certificate.errors import UnusableInput
from lethe.certificate.records import file_problem, json_problem, printable


def read_toml_or_json(path: Path) -> Any:
    """Parse a file as TOML if its name ends in .toml, and as JSON otherwise.

    Raises `UnusableInput` with one line that names the file and, if it is malformed, the line and column.
    """
    kind = "TOML" if path.suffix == ".toml" else "JSON"
    try:
        text = path.read_text(encoding="utf-8-sig")
        return tomllib.loads(text) if kind == "TOML" else json.loads(text)
    except OSError as error:
        raise UnusableInput(file_problem(error)) from None
    except UnicodeDecodeError:
        raise UnusableInput(f"{path} is not text in UTF-8") from None
    except (ValueError, RecursionError) as error:
        where = _toml_problem(error) if kind == "TOML" else json_problem(error)
        raise UnusableInput(f"{path} is not valid {kind} ({where})") from None


def _toml_problem(error: Exception) -> str:
    """Return the place of a mistake in a TOML document.

    >>> try: tomllib.loads("a = 1 2")
    ... except ValueError as error: _toml_problem(error)
    'line 1, column 7'
    """
    text = printable(error)
    place = re.search(r"\(at (?:(line \d+, column \d+)|end of document)\)", text)
    if place is None:
        return text
    return place[1] or "the last line is incomplete"

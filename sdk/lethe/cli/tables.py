"""Tables and values as text for a person."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from rich import box
from rich.table import Table
from rich.text import Text

_ID_WIDTH = 36  # characters of a UUID


def table(columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> Table:
    """Return a table with headings. An id is never broken over two lines, so that it can be copied."""
    names, cells = list(columns), [list(row) for row in rows]
    result = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for place, name in enumerate(names):
        has_ids = any(isinstance(row[place], UUID) for row in cells)
        result.add_column(name, overflow="fold", min_width=_ID_WIDTH if has_ids else None)
    for row in cells:
        result.add_row(*(Text(format_value(value)) for value in row))
    return result


def details(values: Mapping[str, Any]) -> Table:
    """Return a table of labels and values. Values that are empty or None are left out."""
    result = Table(box=None, show_header=False, pad_edge=False)
    result.add_column(style="bold", no_wrap=True)
    result.add_column(overflow="fold")
    for label, value in values.items():
        if value not in (None, "", (), [], {}):
            result.add_row(label, Text(format_value(value)))
    return result


def format_value(value: Any) -> str:
    """Format one value.

    >>> format_value(None), format_value(True), format_value(0.123456), format_value({"erased": 2})
    ('–', 'yes', '0.1235', 'erased 2')
    """
    match value:
        case None:
            return "–"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.4g}"
        case datetime():
            return f"{value:%Y-%m-%d %H:%M %Z}".rstrip()
        case Mapping():
            return ", ".join(f"{name} {format_value(inner)}" for name, inner in value.items())
        case list() | tuple():
            texts = [format_value(inner) for inner in value]
            return (" " if texts and all(text.endswith(".") for text in texts) else "; ").join(texts)
        case _:
            return str(value)


def in_words(code: str) -> str:
    """Return a code of the API as people read it.

    >>> in_words("not_in_training_set")
    'not in training set'
    """
    return code.replace("_", " ")


def format_size(size: float | None) -> str:
    """Format a number of bytes.

    >>> format_size(None), format_size(700), format_size(3 << 20)
    ('–', '700 B', '3.0 MiB')
    """
    if size is None:
        return "–"
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def count(number: int, singular: str, plural: str) -> str:
    """Return a number with its noun in the right form.

    >>> count(1, "person", "people"), count(3, "person", "people")
    ('1 person', '3 people')
    """
    return f"{number} {singular if number == 1 else plural}"

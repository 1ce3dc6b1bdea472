"""Answers as tables."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text


def rows(columns: Iterable[str], entries: Iterable[Iterable[Any]], *, title: str | None = None) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for entry in entries:
        table.add_row(*(Text(told(value)) for value in entry))
    return table


def facts(entries: Mapping[str, Any]) -> Table:
    """Names and values; what is not known is left out."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in entries.items():
        if value not in (None, "", (), [], {}):
            table.add_row(name, Text(told(value)))
    return table


def told(value: Any) -> str:
    match value:
        case None:
            return "–"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.4g}"
        case datetime():
            return f"{value:%Y-%m-%d %H:%M}"
        case Mapping():
            return ", ".join(f"{name} {told(inner)}" for name, inner in value.items())
        case list() | tuple():
            return "; ".join(told(inner) for inner in value)
        case _:
            return str(value)


def size(count: float | None) -> str:
    if count is None:
        return "–"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("there is a last unit")

"""Formats numbers and tables as Markdown. The same figures always give the same text."""

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Report = dict[str, Any]


def read(folder: Path, name: str) -> Report | None:
    """Return a stored result, or None if it was not measured."""
    path = folder / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    r"""Return a Markdown table. A vertical bar inside a cell does not end the cell.

    >>> print(table(["a"], [["|x|"]]))
    | a |
    |---|
    | \|x\| |
    """
    return "\n".join([_line(head), "|" + "---|" * len(head), *map(_line, rows)])


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def figure(name: str, caption: str) -> str:
    """Return a Markdown image with a caption."""
    return f"![{caption}](figures/{name}.svg)"


def missing(command: str) -> str:
    """Return the sentence for a part that was not measured."""
    return f"Not measured. Run `{command}`."


def number(value: float | None, digits: int = 3) -> str:
    """Format with three significant digits.

    >>> number(1234567.0), number(0.5), number(None)
    ('1.23e+06', '0.5', '–')
    """
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:.{digits}g}"


def points(value: float | None) -> str:
    """Format with two decimals."""
    return "–" if value is None else f"{value:.2f}".replace("-0.00", "0.00")


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Format mean and range.

    >>> spread([1.0, 2.0, 3.0])
    '2.00 (1.00 … 3.00)'
    """
    if not values:
        return "–"
    cells = [f"{v:.{digits}f}" for v in (sum(values) / len(values), min(values), max(values))]
    zero = f"{0:.{digits}f}"
    mean, low, high = (zero if v == f"-{zero}" else v for v in cells)
    return mean if low == high == mean else f"{mean} ({low} … {high})"


def loose(values: Sequence[float]) -> str:
    """Format mean and range of figures of any magnitude."""
    if not values:
        return "–"
    mean = number(sum(values) / len(values))
    low, high = number(min(values)), number(max(values))
    return mean if low == high else f"{mean} ({low} … {high})"


def bars(report: Report) -> list[tuple[str, str, str, str]]:
    """Return the targets of a part: name, measured, target, met."""
    return [
        (
            name,
            number(bar["measured"]),
            _target(bar.get("asked", bar.get("bar"))),
            "yes" if bar["met"] else "**no**",
        )
        for name, bar in report.get("bars", {}).items()
    ]


def _target(bar: float | str) -> str:
    return bar if isinstance(bar, str) else f"{bar:.3g}"

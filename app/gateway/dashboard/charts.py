"""Positions of the marks in the charts of the model page. The template draws them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 640, 260
LEFT, RIGHT, TOP, BOTTOM = 60, 16, 14, 36
INSET = 20


@dataclass(frozen=True)
class Bar:
    """Two adjacent bars of one class: rows before and after an erasure."""

    label: str
    x: float
    width: float
    before: float
    after: float

    @property
    def middle(self) -> float:
        """The edge at which the two bars meet."""
        return self.x + self.width


@dataclass(frozen=True)
class Dot:
    """One point of a line chart."""

    x: float
    y: float
    label: str


@dataclass(frozen=True)
class Tick:
    """A labelled grid line of the vertical axis."""

    y: float
    label: str


def gauge_length(part: float, whole: float, length: float = 100.0) -> float:
    """Return how much of a gauge is filled, at most all of it.

    >>> gauge_length(2.0, 8.0), gauge_length(9.0, 8.0)
    (25.0, 100.0)
    """
    return round(length * min(max(part / whole, 0.0), 1.0), 2) if whole > 0 else 0.0


def place_bars(before: Mapping[str, int], after: Mapping[str, int], limit: int = 24) -> list[Bar]:
    """Place two bars for each of the first `limit` classes. The highest bar fills the height."""
    labels = list(before)[:limit]
    top = max([1, *(before[label] for label in labels), *(after.get(label, 0) for label in labels)])
    height = HEIGHT - TOP - BOTTOM
    slot = (WIDTH - 2 * RIGHT) / max(len(labels), 1)
    width = min(slot * 0.36, 34.0)
    return [
        Bar(
            label=label,
            x=round(RIGHT + slot * (index + 0.5) - width, 1),
            width=round(width, 1),
            before=round(height * before[label] / top, 1),
            after=round(height * after.get(label, 0) / top, 1),
        )
        for index, label in enumerate(labels)
    ]


def place_dots(values: Sequence[tuple[str, float]], low: float, high: float) -> list[Dot]:
    """Place one dot per value, evenly spaced. The first is inset so that its label clears the axis."""
    left = LEFT + INSET
    step = (WIDTH - left - RIGHT) / max(len(values) - 1, 1)
    return [
        Dot(round(left + step * index, 1), _height(value, low, high), label)
        for index, (label, value) in enumerate(values)
    ]


def place_ticks(low: float, high: float, steps: int = 2) -> list[Tick]:
    """Place `steps + 1` evenly spaced ticks on the vertical axis."""
    values = [low + (high - low) * k / steps for k in range(steps + 1)]
    return [Tick(_height(value, low, high), f"{value:.3g}") for value in values]


def axis_range(scores: Sequence[float]) -> tuple[float, float]:
    """Return an axis of whole tens around the scores, wide enough that small changes look small.

    >>> axis_range([91.5, 95.0]), axis_range([100.0])
    ((90.0, 100.0), (90.0, 100.0))
    """
    low = min(math.floor(min(scores) / 10) * 10.0, 90.0)
    return low, max(math.ceil(max(scores) / 10) * 10.0, low + 10.0)


def height_of(value: float, low: float, high: float) -> float:
    """Return the vertical position of a value."""
    return _height(value, low, high)


def axis_from_zero(values: Sequence[float]) -> tuple[float, float]:
    """Return an axis from zero to the largest value.

    >>> axis_from_zero([0.5, 2.0]), axis_from_zero([0.0])
    ((0.0, 2.0), (0.0, 1.0))
    """
    return 0.0, max(values, default=0.0) or 1.0


def polyline_points(dots: Sequence[Dot]) -> str:
    """Return the `points` attribute of the line through the dots."""
    return " ".join(f"{dot.x},{dot.y}" for dot in dots)


def _height(value: float, low: float, high: float) -> float:
    share = 0.5 if high <= low else (value - low) / (high - low)
    return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share, 1)

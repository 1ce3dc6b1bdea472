"""Where the marks of a drawing go. Templates draw them; colours are the style sheet's."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 640, 200
LEFT, RIGHT, TOP, BOTTOM = 44, 16, 14, 30
INSET = 20


@dataclass(frozen=True)
class Bar:
    label: str
    x: float
    width: float
    before: float
    after: float
    before_count: int
    after_count: int

    @property
    def middle(self) -> float:
        return self.x + self.width


@dataclass(frozen=True)
class Dot:
    x: float
    y: float
    label: str
    value: float


@dataclass(frozen=True)
class Tick:
    y: float
    label: str


def filled(part: float, whole: float, length: float = 100.0) -> float:
    """How much of a gauge is full; never past its end.

    >>> filled(2.0, 8.0), filled(9.0, 8.0)
    (25.0, 100.0)
    """
    return round(length * min(max(part / whole, 0.0), 1.0), 2) if whole > 0 else 0.0


def bars(before: Mapping[str, int], after: Mapping[str, int], most: int = 24) -> list[Bar]:
    """Two bars per class, of heights up to the drawing's; the classes in their order, as many as fit."""
    labels = list(before)[:most]
    top = max([1, *(before[label] for label in labels), *(after.get(label, 0) for label in labels)])
    room = HEIGHT - TOP - BOTTOM
    slot = (WIDTH - 2 * RIGHT) / max(len(labels), 1)
    width = min(slot * 0.36, 34.0)
    return [
        Bar(
            label=label,
            x=round(RIGHT + slot * (place + 0.5) - width, 1),
            width=round(width, 1),
            before=round(room * before[label] / top, 1),
            after=round(room * after.get(label, 0) / top, 1),
            before_count=before[label],
            after_count=after.get(label, 0),
        )
        for place, label in enumerate(labels)
    ]


def dots(values: Sequence[tuple[str, float]], low: float, high: float) -> list[Dot]:
    """One dot per value, evenly spaced; the first a little inside, where its label is clear of the axis."""
    left = LEFT + INSET
    step = (WIDTH - left - RIGHT) / max(len(values) - 1, 1)
    return [
        Dot(round(left + step * place, 1), _height(value, low, high), label, value)
        for place, (label, value) in enumerate(values)
    ]


def ticks(low: float, high: float, steps: int = 2) -> list[Tick]:
    places = [low + (high - low) * k / steps for k in range(steps + 1)]
    return [Tick(_height(place, low, high), f"{place:.0f}") for place in places]


def span(values: Sequence[float]) -> tuple[float, float]:
    """The axis of scores in points: whole tens around what there is, so that small moves look small.

    >>> span([91.5, 95.0]), span([100.0])
    ((90.0, 100.0), (90.0, 100.0))
    """
    low = min(math.floor(min(values) / 10) * 10.0, 90.0)
    return low, max(math.ceil(max(values) / 10) * 10.0, low + 10.0)


def line(places: Sequence[Dot]) -> str:
    return " ".join(f"{dot.x},{dot.y}" for dot in places)


def _height(value: float, low: float, high: float) -> float:
    share = 0.5 if high <= low else (value - low) / (high - low)
    return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share, 1)

"""The charts of the demo's report, as SVG that follows the colours of the page, light or dark."""

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.demo_membership import Attack
from bench.demo_timing import Timing

# Each colour stands for a variable of the page's style sheet.
INK, FAINT, LETHE, OTHER, TARGET = "#010101", "#020202", "#030303", "#040404", "#050505"
_VARIABLES = {INK: "ink", FAINT: "faint", LETHE: "lethe", OTHER: "other", TARGET: "target"}
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "lethe",
    "font.size": 11,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "none",
    "legend.facecolor": "none",
    "legend.frameon": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": FAINT,
    "grid.alpha": 0.5,
}


@dataclass(frozen=True)
class Score:
    """F1 of one version in per cent, and of a model that was retrained on the same rows."""

    label: str
    released: float
    retrained: float


@dataclass(frozen=True)
class Descent:
    """How the certified distance fell during one solve."""

    label: str
    passes: Sequence[float]
    distances: Sequence[float]


def scores_chart(scores: Sequence[Score], promised: float) -> str:
    """Draw F1 of every version, beside retraining, with the promised score as a line."""
    with _chart() as (figure, axes):
        places = range(len(scores))
        for name, shift, colour in (("released", -0.08, LETHE), ("retrained", 0.08, OTHER)):
            values = [getattr(score, name) for score in scores]
            axes.plot(
                [place + shift for place in places], values, "o", color=colour, markersize=9, label=name
            )
            for place, value in zip(places, values, strict=True):
                axes.annotate(
                    f"{value:.1f}",
                    (place + shift, value),
                    xytext=(9 if shift > 0 else -9, 0),
                    textcoords="offset points",
                    ha="left" if shift > 0 else "right",
                    va="center",
                )
        axes.axhline(promised, color=TARGET, linestyle="--")
        axes.text(-0.45, promised + 0.06, f"promised: at least {promised:g}", color=TARGET, va="bottom")
        axes.set_xticks(list(places), [score.label for score in scores])
        axes.set_ylim(promised - 1, 100)
        axes.set_xlim(-0.5, len(scores) - 0.5)
        axes.grid(axis="y")
        axes.set_ylabel("F1 on unseen images, %")
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
        return _svg(figure)


def descent_chart(descents: Sequence[Descent], target: float) -> str:
    """Draw the certified distance after each step of the solver, down to the target."""
    with _chart() as (figure, axes):
        for descent, colour in zip(descents, (OTHER, LETHE), strict=True):
            axes.semilogy(
                descent.passes, descent.distances, "o-", color=colour, markersize=4, label=descent.label
            )
        axes.axhline(target, color=TARGET, linestyle="--")
        axes.set_xlim(left=0)
        axes.text(1, target * 1.25, f"target distance Δ* = {target:g}", color=TARGET, va="bottom")
        axes.set_xlabel("passes over the data")
        axes.set_ylabel("certified distance")
        axes.grid(axis="y")
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
        return _svg(figure)


def attack_chart(before: Attack, after: Attack) -> str:
    """Draw how many learned people the attack finds against how many others it accuses."""
    with _chart(height=3.6) as (figure, axes):
        for attack, colour, name in ((before, OTHER, "original model"), (after, LETHE, "released model")):
            false, true = attack.curve()
            axes.plot(100 * false, 100 * true, color=colour, label=f"{name}: {100 * attack.auc:.0f} in 100")
        axes.plot([0, 100], [0, 100], color=TARGET, linestyle="--", label="guessing: 50 in 100")
        axes.set_xlabel("never learned, but accused, %")
        axes.set_ylabel("learned and found, %")
        axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5))
        axes.set_aspect("equal")
        return _svg(figure)


def timing_chart(timing: Timing) -> str:
    """Draw the seconds of each way to get a model without a few people, and without a large group."""
    with _chart(height=3) as (figure, axes):
        parts = ((timing.few_people, timing.few), (timing.group_people, timing.group))
        ways = [(f"{people} people: {way.name}", way.seconds) for people, ways in parts for way in ways]
        names, seconds = zip(*ways, strict=True)
        colours = [LETHE if "unlearns" in name else OTHER for name in names]
        axes.barh(names, seconds, color=colours, height=0.6)
        for place, value in enumerate(seconds):
            axes.annotate(
                f"{value:.2f} s", (value, place), xytext=(6, 0), textcoords="offset points", va="center"
            )
        axes.invert_yaxis()
        axes.set_xlim(0, 1.15 * max(seconds))
        axes.set_xlabel("seconds on one core")
        return _svg(figure)


@contextmanager
def _chart(height: float = 3.2) -> Iterator[tuple[Figure, Axes]]:
    with mpl.rc_context(_STYLE):
        figure, axes = plt.subplots(figsize=(7.2, height))
        try:
            yield figure, axes
        finally:
            plt.close(figure)


def _svg(figure: Figure) -> str:
    """Return the figure as an element for HTML, with variables in place of colours."""
    sink = io.StringIO()
    figure.savefig(sink, format="svg", bbox_inches="tight", metadata={"Date": None})
    text = sink.getvalue()
    text = text[text.index("<svg") :]
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, f"var(--{variable})")
    # The page's own font, and a picture as wide as the column.
    text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font: \1px system-ui, sans-serif", text)
    for size in ("width", "height"):
        text = re.sub(rf'(<svg[^>]*?) {size}="[^"]*"', r"\1", text, count=1)
    return text

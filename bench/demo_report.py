"""The demonstration's report: one HTML file with its figures inside, readable without a network."""

import html
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot as plt

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 54rem; padding: 0 1rem;
       color: #1a1a1a; background: #fff; }
h1 { font-size: 1.6rem; } table { border-collapse: collapse; margin: 1rem 0; width: 100%; }
td, th { border-bottom: 1px solid #ccc; padding: .35rem .6rem; text-align: left; vertical-align: top; }
pre { background: #f4f4f4; padding: 1rem; font-size: .85rem; white-space: pre-wrap;
      overflow-wrap: anywhere; } figure { margin: 1.5rem 0; }
svg { max-width: 100%; height: auto; } figcaption { color: #555; font-size: .9rem; }
@media (prefers-color-scheme: dark) { body { background: #fff; } }
"""


def write(
    path: Path,
    *,
    summary: Mapping[str, str],
    evidence: Mapping[str, Any],
    target: float,
    verification: Sequence[str],
) -> None:
    rows = "".join(f"<tr><th>{html.escape(k)}</th><td>{html.escape(v)}</td></tr>" for k, v in summary.items())
    figures = [
        (
            _convergence(evidence["trace"], target),
            "The gradient of the retained objective falls until it certifies the target.",
        ),
        (
            _histogram(evidence["shift"]),
            "Class mix before and after: erasure requests are rarely a random sample.",
        ),
    ]
    body = "".join(
        f"<figure>{svg}<figcaption>{html.escape(text)}</figcaption></figure>" for svg, text in figures
    )
    path.write_text(
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Lethe: erased, and proved</title>"
        f"<style>{STYLE}</style><h1>Erased, and proved</h1><table>{rows}</table>{body}"
        f"<h2>Offline verification</h2><pre>{html.escape(chr(10).join(verification))}</pre></html>\n"
    )


def _convergence(trace: Sequence[Mapping[str, Any]], target: float) -> str:
    figure, axes = plt.subplots(figsize=(7, 3))
    axes.semilogy(
        [step["passes"] for step in trace], [step["gradient_norm"] for step in trace], "ko-", markersize=4
    )
    axes.set_xlabel("passes over the data")
    axes.set_ylabel("‖∇f_R‖")
    axes.set_title(f"target distance {target:g}", loc="left", fontsize=10)
    axes.grid(alpha=0.3)
    return _svg(figure)


def _histogram(shift: Mapping[str, Any]) -> str:
    names = sorted(shift["original"], key=float)
    places = range(len(names))
    figure, axes = plt.subplots(figsize=(7, 3))
    axes.bar(
        [p - 0.2 for p in places],
        [shift["original"][n] for n in names],
        0.4,
        color="white",
        edgecolor="black",
        label="before",
    )
    axes.bar(
        [p + 0.2 for p in places],
        [shift["retained"].get(n, 0) for n in names],
        0.4,
        color="0.35",
        label="after",
    )
    axes.set_xticks(list(places), names)
    axes.set_xlabel("digit")
    axes.set_ylabel("training rows")
    axes.legend(frameon=False, ncols=2, loc="lower right", bbox_to_anchor=(1, 1))
    return _svg(figure)


def _svg(figure: Any) -> str:
    sink = io.StringIO()
    figure.savefig(sink, format="svg", bbox_inches="tight")
    plt.close(figure)
    text = sink.getvalue()
    return text[text.index("<svg") :]

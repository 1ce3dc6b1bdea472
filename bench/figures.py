"""`python -m bench.figures` draws docs/figures/*.png and *.svg from bench/results.

The figures are readable in black and white: methods differ by line style and marker, never by colour alone.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt

from bench.evidence.markdown import Report, read
from bench.evidence.page_comparison import METHODS
from bench.measurement import RESULTS

FIGURES = Path(__file__).parent.parent / "docs" / "figures"
# Line style, marker, shade, marker face and marker size. Larger markers are drawn first where they overlap.
STYLES: dict[str, tuple[Any, str, str, str, float]] = {
    "guo2020": (":", "s", "0.45", "white", 9),
    "zhang2024": ("--", "^", "0.35", "white", 6.5),
    "tr-paper": ("-.", "D", "0.2", "0.6", 3.5),
    "tr": ("-", "o", "0.0", "0.0", 5),
    "retrained": ((0, (5, 1, 1, 1, 1, 1)), "x", "0.3", "0.3", 5),
}
_KL = "KL(P_R‖P_D)"
_RC_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "lethe",
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.grid": True,
    "grid.color": "0.88",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}


def draw(folder: Path = RESULTS) -> list[str]:
    """Draw every figure whose results exist, and return their names."""
    sweeps = [r for r in (read(folder, f"evidence_{n}") for n in ("sweep_mnist", "sweep_cifar")) if r]
    comparisons = [r for r in (read(folder, f"evidence_{n}") for n in ("mnist", "cifar", "mlp")) if r]
    curves = [report for report in comparisons if "f1_by_sigma" in report]
    lifetime = read(folder, "evidence_lifetime")
    drawn = []
    with mpl.rc_context(_RC_STYLE):
        if sweeps:
            drawn += [_save("delta_f1_kl", _sweep(sweeps)), _save("seconds_kl", _seconds(sweeps))]
        if curves:
            drawn.append(_save("f1_sigma", _noise(curves)))
        if lifetime:
            drawn.append(_save("lifetime", _lifetime(lifetime)))
    return drawn


def _save(name: str, figure: Any) -> str:
    FIGURES.mkdir(parents=True, exist_ok=True)
    figure.savefig(FIGURES / f"{name}.svg", metadata={"Date": None}, bbox_inches="tight")
    figure.savefig(FIGURES / f"{name}.png", dpi=150, metadata={"Software": None}, bbox_inches="tight")
    plt.close(figure)
    return name


def _sweep(reports: list[Report]) -> Any:
    """Draw releases in the upper row and models before noise in the lower, where the baselines differ."""
    figure, axes = plt.subplots(
        2, len(reports), figsize=(4.6 * len(reports), 5.6), squeeze=False, sharex=True, layout="constrained"
    )
    for column, report in enumerate(reports):
        above, below = axes[0, column], axes[1, column]
        for method in METHODS:
            _line(above, report, method, lambda p, m: _gap(p, p["methods"][m]["released"]))
            _line(below, report, method, lambda p, m: _gap(p, p["methods"][m]["before_noise"]))
        above.set_yscale("symlog", linthresh=0.1)
        above.set_title(f"{report['name']}, {report['rows']:,} rows: released (ε = 1, δ = 1e-5)", fontsize=9)
        below.set_title("before noise (nothing certified)", fontsize=9)
        below.set_xlabel(_KL)
        for ax in (above, below):
            ax.axhline(0, color="0.6", linewidth=0.8)
            ax.set_ylabel("ΔF1, points")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=len(METHODS))
    return figure


def _seconds(reports: list[Report]) -> Any:
    figure, axes = plt.subplots(
        1, len(reports), figsize=(4.6 * len(reports), 3.4), squeeze=False, layout="constrained"
    )
    for ax, report in zip(axes[0], reports, strict=True):
        for method in METHODS:
            _line(ax, report, method, lambda p, m: p["methods"][m]["processor_seconds"])
        _line(ax, report, "retrained", lambda p, _: p["retrain"]["processor_seconds"])
        ax.set_ylim(bottom=0)
        ax.set_title(f"{report['name']}, {report['rows']:,} rows", fontsize=9)
        ax.set_xlabel(_KL)
        ax.set_ylabel("processor seconds")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=len(STYLES))
    return figure


def _line(ax: Any, report: Report, name: str, value: Callable[[Report, str], float | None]) -> None:
    """Draw the mean over seeds, with the range as an error bar."""
    xs, means, lows, highs = [], [], [], []
    for kl in sorted({point["kl_asked"] for point in report["points"]}):
        here = [value(point, name) for point in report["points"] if point["kl_asked"] == kl]
        known = [v for v in here if v is not None]
        if known:
            mean = sum(known) / len(known)
            xs.append(kl)
            means.append(mean)
            lows.append(mean - min(known))
            highs.append(max(known) - mean)
    style, marker, shade, face, size = STYLES[name]
    ax.errorbar(
        xs,
        means,
        yerr=[lows, highs],
        linestyle=style,
        marker=marker,
        color=shade,
        markerfacecolor=face,
        markersize=size,
        capsize=2.5,
        linewidth=1.3,
        label=name,
    )


def _gap(point: Report, scored: Report | None) -> float | None:
    return None if scored is None else float(point["retrain"]["f1"] - scored["f1"])


def _noise(reports: list[Report]) -> Any:
    """Draw F1 of a retrained model under noise, and where each method's σ falls on that curve."""
    figure, axes = plt.subplots(
        1, len(reports), figsize=(4.2 * len(reports), 3.6), squeeze=False, layout="constrained"
    )
    for ax, report in zip(axes[0], reports, strict=True):
        curve = report["f1_by_sigma"]
        sigmas, f1 = [c["sigma"] for c in curve], [c["f1"] for c in curve]
        ax.plot(sigmas, f1, color="0.0", linewidth=1.3, label="retrained, with noise σ")
        ax.fill_between(
            sigmas,
            [c["f1_low"] for c in curve],
            [c["f1_high"] for c in curve],
            color="0.85",
            linewidth=0,
        )
        for method in METHODS:
            result = report["runs"][0]["methods"][method]
            if result["sigma"] is not None:
                _, marker, shade, face, _ = STYLES[method]
                label = f"{method}: the σ its bound forces"
                place = (result["sigma"], result["released"]["f1"])
                ax.plot(*place, marker, color=shade, markerfacecolor=face, markersize=8, label=label)
        ax.set_xscale("log")
        ax.set_ylim(0, 100)
        ax.set_title(f"{report['name']}, {report['model'].split(',')[0]}", fontsize=9)
        ax.set_xlabel("σ")
        ax.set_ylabel("F1, %")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def _lifetime(report: Report) -> Any:
    batches = report["batches"]
    x = [b["batch"] for b in batches]
    figure, axes = plt.subplots(2, 2, figsize=(8.6, 5.4), sharex=True, layout="constrained")
    near, f1, epsilon, seconds = axes.flat
    near.axhline(report["target_distance"], color="0.4", linestyle=":", label="Δ*, which the noise covers")
    near.plot(x, [b["certified_distance"] for b in batches], "--", color="0.3", label="certified Δ")
    near.plot(x, [b["true_distance"] for b in batches], "-", color="0.0", label="true distance")
    near.set_yscale("log")
    near.set_ylim(report["target_distance"] / 50, report["target_distance"] * 12)
    near.set_ylabel("distance to retraining")
    f1.plot(x, [b["f1"] for b in batches], "-", color="0.0", label="published")
    f1.plot(x, [b["f1_retrained"] for b in batches], "--", color="0.4", label="retrained, no noise")
    f1.set_ylabel("F1, %")
    epsilon.plot(
        x, [b["epsilon"] for b in batches], "-", color="0.0", label="ε so far, first batch's subjects"
    )
    epsilon.set_ylabel("ε at δ = 1e-5")
    seconds.plot(x, [b["processor_seconds"] for b in batches], "-", color="0.0", label="unlearned")
    again = [b["retrain_processor_seconds"] for b in batches]
    seconds.plot(x, again, "--", color="0.4", label="retrained")
    seconds.set_ylim(bottom=0)
    seconds.set_ylabel("processor seconds")
    for ax in axes.flat:
        ax.legend(fontsize=8)
    for ax in axes[1]:
        ax.set_xlabel("batch")
    return figure


if __name__ == "__main__":
    print("drew", ", ".join(draw()) or "nothing, because there are no results")

"""`python -m bench.results_page` writes docs/results.md from bench/results/*.json. It measures nothing.

It also writes the table of figures in the README.
"""

from pathlib import Path

from bench.evidence import (
    page_attacks,
    page_comparison,
    page_components,
    page_linearised,
    page_representations,
    page_series,
    page_summary,
)
from bench.evidence.markdown import Report, bars, read, table
from bench.evidence.prose import (
    BOUNDS,
    INTRO,
    LEAD,
    LINEARISED,
    MEMBERSHIP,
    PAPER,
    RECONSTRUCTION,
    REPRESENTATIONS,
    SECONDS,
    UTILITY,
)
from bench.measurement import RESULTS

PAGE = Path(__file__).parent.parent / "docs" / "results.md"
README = PAGE.parent.parent / "README.md"
FIGURES = "<!-- figures: python -m bench.results_page writes this table -->"
END_OF_FIGURES = "<!-- end of figures -->"
COMPARED = ("mnist", "fashion", "cifar", "mlp", "allcnn", "resnet")
SWEPT = ("sweep_mnist", "sweep_cifar")
OTHERS = (
    "engine",
    "networks",
    "gateway",
    "scale",
    "latency",
    "ranks",
    "paper_examples",
    "representations",
    "linearised",
)
SUMMARISED = ("representations", "linearised")
"""Results with one entry per data set, for the first section. A missing one is left out."""

ALONE = ("ratio", "lira", "reconstruction", "lifetime", "growth")


def generate(folder: Path = RESULTS) -> str:
    """Return the text of the page from the results in `folder`."""
    compared = _present(folder, COMPARED)
    swept = _present(folder, SWEPT)
    alone = {name: read(folder, f"evidence_{name}") for name in ALONE}
    sections = [
        LEAD,
        page_summary.summary([read(folder, name) for name in SUMMARISED], compared),
        _bars(folder, compared),
        INTRO,
        _absent(folder),
        f"## 1. F1 and loss at KL ≈ 0.104\n\n{UTILITY}\n\n{page_comparison.utility(compared)}\n\n{PAPER}",
        f"## 2. Membership inference\n\n{MEMBERSHIP}\n\n{page_comparison.membership(compared)}\n\n"
        + page_attacks.lira(alone["lira"])
        + f"\n\n### Reconstruction by someone who kept the earlier version\n\n{RECONSTRUCTION}\n\n"
        + page_attacks.reconstruction(alone["reconstruction"]),
        f"## 3. ΔF1 against class drift\n\n{page_series.sweep(swept)}",
        f"## 4. Deletions without bias\n\n{page_series.ratio(alone['ratio'])}",
        f"## 5. Seconds\n\n{SECONDS}\n\n{page_comparison.seconds(compared)}\n\n{page_series.seconds(swept)}",
        f"## 6. Bounds\n\n{BOUNDS}\n\n{page_comparison.bounds(compared)}",
        f"## 7. A lifetime of batches\n\n{page_series.lifetime(alone['lifetime'])}",
        f"## 8. Growth\n\n{page_series.growth(alone['growth'])}",
        f"## 9. Gateway throughput\n\n{page_components.gateway(read(folder, 'gateway'))}",
        f"## 10. Engine, networks, ranks\n\n{page_components.rest(folder)}",
        f"## 11. Certified heads on public representations\n\n{REPRESENTATIONS}\n\n"
        + page_representations.representations(read(folder, "representations")),
        f"## 12. From sealed to completed\n\n{page_components.latency(read(folder, 'latency'))}",
        f"## 13. A large installation\n\n{page_components.scale(read(folder, 'scale'))}",
        f"## 14. Linearised networks\n\n{LINEARISED}\n\n"
        + page_linearised.linearised(read(folder, "linearised")),
        f"## Where and when\n\n{_machines(folder)}",
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def write() -> None:
    """Write docs/results.md, and the table of the README."""
    PAGE.write_text(generate())
    README.write_text(with_figures(README.read_text()))
    print(f"wrote {PAGE.name} and the table of {README.name}")


def with_figures(readme: str, folder: Path = RESULTS) -> str:
    """Return the text of the README with the table of the results in `folder`."""
    start, rest = readme.split(FIGURES)
    _, end = rest.split(END_OF_FIGURES)
    figures = page_summary.headline([read(folder, name) for name in SUMMARISED])
    return f"{start}{FIGURES}\n\n{figures}\n\n{END_OF_FIGURES}{end}"


def _present(folder: Path, names: tuple[str, ...]) -> list[Report]:
    reports = (read(folder, f"evidence_{name}") for name in names)
    return [report for report in reports if report is not None]


def _absent(folder: Path) -> str:
    """List the parts that are missing from the page."""
    parts = [name for name in (*COMPARED, *SWEPT, *ALONE) if read(folder, f"evidence_{name}") is None]
    if not parts:
        return ""
    return f"Not measured and therefore missing below: `python -m bench.evidence {' '.join(parts)}`."


def _bars(folder: Path, compared: list[Report]) -> str:
    """Return the table of targets: the headline figures, then those of every other part."""
    rows = []
    for report in compared:
        if not report["name"].startswith("MNIST"):
            continue
        gaps = page_comparison.delta(report, "tr")
        mean = sum(gaps) / len(gaps) if gaps else None
        met = mean is not None and abs(mean) <= 0.1
        cell = "no certificate" if mean is None else f"{mean:.3f}, seeds {min(gaps):.3f} … {max(gaps):.3f}"
        rows.append((f"{report['name']} (`{report['tier']}`): ΔF1 of `tr`", cell, "within ±0.1", _met(met)))
    for name, measured, target, met in page_representations.targets(read(folder, "representations")):
        rows.append((name, measured, target, _met(met)))
    for name in OTHERS:
        other = read(folder, name)
        rows += [(f"{name}: {bar[0]}", *bar[1:]) for bar in bars(other)] if other else []
    met_ones = sum(row[-1] == _met(True) for row in rows)
    lead = f"{met_ones} of {len(rows)} targets are met. Those that are not are marked {_met(False)}."
    return f"## Targets\n\n{lead}\n\n" + table(("", "measured", "target", "met"), rows)


def _met(met: bool) -> str:
    return "yes" if met else "**no**"


def _machines(folder: Path) -> str:
    head = ("part", "size", "processor", "cores", "threads", "load", "duration s", "torch", "commit", "seeds")
    rows = []
    for name in (*(f"evidence_{part}" for part in (*COMPARED, *SWEPT, *ALONE)), *OTHERS):
        report = read(folder, name)
        if report is None:
            rows.append((name, "not measured", *["–"] * 8))
            continue
        host = report["machine"]
        load = f"{host['load_at_start']:.1f}"
        if "load_at_end" in report:
            load += f" … {report['load_at_end']:.1f}"
        rows.append(
            (
                name,
                report.get("size", "–"),
                host["processor"],
                str(host["cores"]),
                str(host["threads"]),
                load,
                f"{report['seconds']:.0f}" if "part" in report else "–",
                host["torch"],
                host["commit"] or "–",
                ", ".join(map(str, report.get("seeds", [report.get("seed", "–")]))),
            )
        )
    return table(head, rows)


if __name__ == "__main__":
    write()

"""`python -m bench.results_page` writes docs/results.md from bench/results/*.json; it measures nothing."""

from pathlib import Path

from bench.evidence import page_comparison, page_others, page_reconstruction, page_series
from bench.evidence.markdown import Report, bars, read, table
from bench.evidence.prose import BOUNDS, INTRO, MEMBERSHIP, PAPER, RECONSTRUCTION, SECONDS, UTILITY
from bench.measuring import RESULTS

PAGE = Path(__file__).parent.parent / "docs" / "results.md"
COMPARED = ("mnist", "fashion", "cifar", "mlp", "allcnn")
SWEPT = ("sweep_mnist", "sweep_cifar")
OTHERS = ("engine", "networks", "gateway", "ranks", "paper_examples")
ALONE = ("ratio", "lira", "reconstruction", "lifetime", "growth")


def generate(folder: Path = RESULTS) -> str:
    compared = _present(folder, COMPARED)
    swept = _present(folder, SWEPT)
    alone = {name: read(folder, f"evidence_{name}") for name in ALONE}
    sections = [
        INTRO,
        _bars(folder, compared),
        _absent(folder),
        f"## 1. F1 and loss at KL ≈ 0.104\n\n{UTILITY}\n\n{page_comparison.utility(compared)}\n\n{PAPER}",
        f"## 2. Membership inference\n\n{MEMBERSHIP}\n\n{page_comparison.membership(compared)}\n\n"
        + page_series.lira(alone["lira"])
        + f"\n\n### Reconstruction by someone who kept the earlier version\n\n{RECONSTRUCTION}\n\n"
        + page_reconstruction.reconstruction(alone["reconstruction"]),
        f"## 3. ΔF1 against the shift\n\n{page_series.sweep(swept)}",
        f"## 4. Deletions without bias\n\n{page_series.ratio(alone['ratio'])}",
        f"## 5. Seconds\n\n{SECONDS}\n\n{page_comparison.seconds(compared)}\n\n{page_series.seconds(swept)}",
        f"## 6. Bounds\n\n{BOUNDS}\n\n{page_comparison.bounds(compared)}",
        f"## 7. A lifetime of batches\n\n{page_series.lifetime(alone['lifetime'])}",
        f"## 8. Growth\n\n{page_series.growth(alone['growth'])}",
        f"## 9. Gateway throughput\n\n{page_others.gateway(read(folder, 'gateway'))}",
        f"## 10. Engine, networks, ranks\n\n{page_others.rest(folder)}",
        f"## Where and when\n\n{_machines(folder)}",
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def write() -> None:
    PAGE.write_text(generate())
    print(f"wrote {PAGE.name}")


def _present(folder: Path, names: tuple[str, ...]) -> list[Report]:
    found = (read(folder, f"evidence_{name}") for name in names)
    return [report for report in found if report is not None]


def _absent(folder: Path) -> str:
    """Parts a reader would look for in vain below."""
    parts = [name for name in (*COMPARED, *SWEPT, *ALONE) if read(folder, f"evidence_{name}") is None]
    if not parts:
        return ""
    return f"Not measured, and so not on this page: `python -m bench.evidence {' '.join(parts)}`."


def _bars(folder: Path, compared: list[Report]) -> str:
    """The headline, and what every other part was asked to reach."""
    rows = []
    for report in compared:
        if not report["name"].startswith("MNIST"):
            continue
        gaps = page_comparison.delta(report, "tr")
        mean = sum(gaps) / len(gaps) if gaps else None
        met = mean is not None and abs(mean) <= 0.1
        shown = (
            "no certificate"
            if mean is None
            else f"{mean:.3f}, single seeds {min(gaps):.3f} … {max(gaps):.3f}"
        )
        rows.append((f"{report['name']} (`{report['tier']}`): ΔF1 of `tr`", shown, "within ±0.1", _yes(met)))
    for name in OTHERS:
        found = read(folder, name)
        rows += [(f"{name}: {bar[0]}", *bar[1:]) for bar in bars(found)] if found else []
    return "## What was asked\n\n" + table(("", "measured", "asked", "met"), rows)


def _yes(met: bool) -> str:
    return "yes" if met else "**no**"


def _machines(folder: Path) -> str:
    head = ("part", "size", "processor", "cores", "threads", "load", "took s", "torch", "commit", "seeds")
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

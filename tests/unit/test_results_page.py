"""docs/results.md is what bench/results says: written by the script, never by hand."""

import json
from pathlib import Path

from bench import results_page
from bench.measuring import RESULTS

DOCS = Path(results_page.__file__).parent.parent / "docs"


def test_the_page_is_what_the_committed_results_give() -> None:
    assert results_page.PAGE.read_text() == results_page.generate(), "run `python -m bench.results_page`"


def test_every_figure_the_page_shows_is_there_in_both_formats() -> None:
    shown = [
        line.split("](figures/")[1].removesuffix(".svg)")
        for line in results_page.generate().splitlines()
        if "](figures/" in line
    ]
    for name in shown:
        assert (DOCS / "figures" / f"{name}.svg").exists()
        assert (DOCS / "figures" / f"{name}.png").exists()


def test_what_was_not_measured_is_said(tmp_path: Path) -> None:
    page = results_page.generate(tmp_path)
    assert page.count("Not measured") >= 10
    assert "figures/" not in page


def test_a_missed_bar_is_shown_as_missed(tmp_path: Path) -> None:
    report = json.loads((RESULTS / "engine.json").read_text())
    name = next(iter(report["bars"]))
    report["bars"][name]["met"] = False
    (tmp_path / "engine.json").write_text(json.dumps(report))
    (line,) = [line for line in results_page.generate(tmp_path).splitlines() if f"engine: {name}" in line]
    assert line.endswith("| **no** |")

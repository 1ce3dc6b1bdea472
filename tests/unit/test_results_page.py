"""docs/results.md is generated from bench/results, never edited by hand."""

import json
from pathlib import Path
from typing import Any

from bench import results_page
from bench.measurement import RESULTS

DOCS = Path(results_page.__file__).parent.parent / "docs"


def test_the_page_is_what_the_committed_results_give() -> None:
    assert results_page.PAGE.read_text() == results_page.generate(), "run `python -m bench.results_page`"


def test_the_table_of_the_readme_is_what_the_committed_results_give() -> None:
    readme = results_page.README.read_text()
    assert readme == results_page.with_figures(readme), "run `python -m bench.results_page`"
    assert readme.count("`proved` |") >= 4


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


def made_up_problem(title: str, **change: Any) -> dict[str, Any]:
    figures = {
        "title": title,
        "f1_before": 98.9,
        "f1_retrained": 98.31,
        "f1_released": 98.29,
        "delta_f1": 0.02,
        "delta_f1_interval": [-0.01, 0.05],
        "assurance": "proved",
        "rows": 54321,
        "holdout_rows": 1234,
        "erased": 8765,
        "people": 4321,
        "biased_by": "some groups",
        "kl": 0.1041,
        "unlearn_seconds": 11.1,
        "retrain_seconds": 22.2,
        "passes_unlearn": 33.3,
        "passes_retrain": 44.4,
        "features_seconds": 55.0,
        "row_check": "batches-compared",
        "width": 987,
        "lambda": 3e-6,
        "target_distance": 0.03,
        "certified_distance": 0.029,
        "sigma": 0.0123,
        "peak_memory_bytes": 3 << 29,
        "beside": None,
    }
    return figures | change


def test_representations_are_shown_with_their_targets(tmp_path: Path) -> None:
    logistic = {"model": "another model", "seconds_before": 5.0, "seconds_retrained": 4.0}
    logistic |= {"f1_before": 71.0, "f1_retrained": 70.0, "auc_before": 0.8123, "auc_retrained": 0.8011}
    report = {
        "machine": json.loads((RESULTS / "engine.json").read_text())["machine"],
        "mnist": made_up_problem("digits"),
        "cifar10": made_up_problem("objects", f1_released=80.0),
        "loans": made_up_problem("loans", delta_f1=0.2, auc=0.8005, beside=logistic),
    }
    (tmp_path / "representations.json").write_text(json.dumps(report))
    lines = results_page.generate(tmp_path).splitlines()
    for cell in ("54,321", "8,765", "0.104", "98.90", "98.31", "**98.29**", "**0.02**", "`proved`"):
        assert any(line.startswith("| digits |") and cell in line for line in lines), cell
    assert "| digits | 55 | 11.1 | 22.2 | 33.3 | 44.4 | 1.50 GiB |" in lines
    assert "| digits: F1 before | 98.90 | >= 98.5 | yes |" in lines
    assert "| objects: F1 released | 80.00 | >= 84 | **no** |" in lines
    assert "| loans: ΔF1, absolute | 0.200 | <= 0.1 | **no** |" in lines
    assert "| loans: assurance | proved | proved | yes |" in lines
    assert any("AUC 80.05 | another model: F1 71.00 before" in line for line in lines)


def test_what_you_get_comes_first_with_one_line_per_data_set(tmp_path: Path) -> None:
    host = json.loads((RESULTS / "engine.json").read_text())["machine"]
    known = {"machine": host, "mnist": made_up_problem("MNIST, digits"), "loans": made_up_problem("loans")}
    (tmp_path / "representations.json").write_text(json.dumps(known))
    page = results_page.generate(tmp_path)
    assert page.index("## What you get") < page.index("## Targets") < page.index("## 1. ")
    line = "| MNIST, digits | 8,765 of 54,321 | 98.90 | 98.31 | **98.29** | 94.65 | `proved` | 11.1 | 22.2 |"
    assert line in page.splitlines()
    assert "| loans | 8,765 of 54,321 | 98.90 | 98.31 | **98.29** | – | `proved` | 11.1 | 22.2 |" in page

    later = {"machine": host, "svhn": made_up_problem("SVHN, linearised", unlearn_seconds=None)}
    (tmp_path / "linearised.json").write_text(json.dumps(later))
    page = results_page.generate(tmp_path)
    assert (
        "| SVHN, linearised | 8,765 of 54,321 | 98.90 | 98.31 | **98.29** | – | `proved` | – | 22.2 |" in page
    )


def test_without_measurements_nothing_is_promised(tmp_path: Path) -> None:
    assert "What you get" not in results_page.generate(tmp_path).replace("What you get comes first", "")


def test_a_linearised_case_shows_its_passes_with_and_without_a_sketch(tmp_path: Path) -> None:
    report = json.loads((RESULTS / "linearised.json").read_text())
    small = report["mnist"]["small_erasure"]
    costs = {"certified": True, "unlearn_seconds": 3.5}
    small |= {"passes_retrain": 58.0, "retrain_seconds": 7.0}
    small["with_sketch"] = costs | {"draws": [14.0, 15.0], "passes_unlearn": 14.5, "ratio": 0.25}
    small["without_sketch"] = costs | {"draws": [29.0, 29.0], "passes_unlearn": 29.0, "ratio": 0.5}
    small["preparation"] = {"directions": 152, "passes": 304, "seconds": 1.0}
    (tmp_path / "linearised.json").write_text(json.dumps(report))
    page = results_page.generate(tmp_path)
    cells = "14.5 (14.0 … 15.0) | 25 % | 304 passes for 152 directions |"
    assert f"| 58.0 | 29.0 | **50 %** | 3.5 | 7 | {cells}" in page
    small["with_sketch"] = None
    (tmp_path / "linearised.json").write_text(json.dumps(report))
    page = results_page.generate(tmp_path)
    assert "| 58.0 | 29.0 | **50 %** | 3.5 | 7 | not measured | – | – |" in page
    del report["mnist"]["small_erasure"]
    (tmp_path / "linearised.json").write_text(json.dumps(report))
    assert "| not measured | – | – | – | – | – | – | – |" in results_page.generate(tmp_path)

"""The section on certified heads on public representations, and its targets."""

from collections.abc import Iterator

from bench.evidence.markdown import Report, missing, number, points, table

PROBLEMS = ("mnist", "cifar10", "newsgroups", "loans")
# The paper's unlearned models after an erasure of the same size and bias.
PAPER = {"mnist": "the paper's unlearned MLP: F1 94.65", "cifar10": "the paper's unlearned AllCNN: F1 73.64"}
LEAST_F1 = {"mnist": {"before": 98.5, "released": 97.5}, "cifar10": {"before": 88.0, "released": 84.0}}
MOST_DELTA = {"newsgroups": 0.1, "loans": 0.1}
DATA = "data, representation"
_SCORES = ("rows", "erased", "KL(P_R‖P_D)", "F1 before", "F1 retrained", "**F1 released**", "**ΔF1**")
_COST = ("features s", "unlearn s", "retrain s", "unlearn, passes", "retrain, passes", "peak memory")
_SETTINGS = ("numbers per row", "λ", "Δ*", "certified Δ", "σ", "how rows ran")

Row = tuple[str, ...]


def representations(report: Report | None) -> str:
    """Return the tables of quality, cost and settings."""
    if report is None:
        return missing("python -m bench representations")
    names = [name for name in PROBLEMS if name in report]
    cases = [report[name] for name in names]
    return "\n\n".join(
        (
            table((DATA, *_SCORES, "95 %", "assurance"), map(_quality, cases)),
            table((DATA, "released", "beside it"), [_beside(name, report[name]) for name in names]),
            "Seconds and full passes over the rows. Features are computed once, at registration.",
            table((DATA, *_COST), map(_cost, cases)),
            table((DATA, *_SETTINGS), map(_settings, cases)),
        )
    )


def targets(report: Report | None) -> Iterator[tuple[str, str, str, bool]]:
    """Yield name, measured figure, target, and whether it is met."""
    for name, case in ((name, (report or {}).get(name)) for name in PROBLEMS):
        if case is None:
            continue
        for moment, least in LEAST_F1.get(name, {}).items():
            measured = case[f"f1_{moment}"]
            yield f"{case['title']}: F1 {moment}", points(measured), f">= {least:g}", measured >= least
        if name in MOST_DELTA:
            measured, most = case["delta_f1"], MOST_DELTA[name]
            yield f"{case['title']}: ΔF1, absolute", f"{measured:.3f}", f"<= {most:g}", measured <= most
        yield f"{case['title']}: assurance", case["assurance"], "proved", case["assurance"] == "proved"


def _quality(case: Report) -> Row:
    low, high = case["delta_f1_interval"]
    return (
        case["title"],
        f"{case['rows']:,} and {case['holdout_rows']:,} held out",
        f"{case['erased']:,} rows of {case['people']:,} people; mostly {case['biased_by']}",
        f"{case['kl']:.3f}",
        points(case["f1_before"]),
        points(case["f1_retrained"]),
        f"**{points(case['f1_released'])}**",
        f"**{points(case['f1_retrained'] - case['f1_released'])}**",
        f"{points(low)} … {points(high)}",
        f"`{case['assurance']}`",
    )


def _beside(name: str, case: Report) -> Row:
    """Return the scores of the released model, and those of another one on the same data."""
    released = f"F1 {points(case['f1_released'])}"
    if "auc" in case:
        released += f", AUC {points(100 * case['auc'])}"
    other = case["beside"]
    if other is None:
        return case["title"], released, PAPER.get(name, "–")
    scores = f"F1 {points(other['f1_before'])} before, {points(other['f1_retrained'])} retrained"
    if "auc_before" in other:
        scores += f"; AUC {points(100 * other['auc_before'])}, {points(100 * other['auc_retrained'])}"
    seconds = f"{number(other['seconds_before'])} and {number(other['seconds_retrained'])} s"
    return case["title"], released, f"{other['model']}: {scores}; {seconds}"


def _cost(case: Report) -> Row:
    return (
        case["title"],
        f"{case['features_seconds']:.0f}",
        number(case["unlearn_seconds"]),
        number(case["retrain_seconds"]),
        f"{case['passes_unlearn']:.1f}",
        f"{case['passes_retrain']:.1f}",
        f"{case['peak_memory_bytes'] / 2**30:.2f} GiB",
    )


def _settings(case: Report) -> Row:
    ran = {"rows-run-alone": "alone", "batches-compared": "in batches"}
    return (
        case["title"],
        f"{case['width']:,}",
        f"{case['lambda']:g}",
        f"{case['target_distance']:g}",
        number(case["certified_distance"]),
        number(case["sigma"]),
        ran[case["row_check"]],
    )

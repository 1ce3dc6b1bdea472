"""The section on rebuilding erased rows from two versions of a model."""

from bench.evidence.markdown import Report, missing, points, table


def reconstruction(report: Report | None) -> str:
    """Write one table for each data set and model: attacks down, batch sizes across."""
    if report is None:
        return missing("python -m bench.evidence reconstruction")
    pieces = []
    for name in dict.fromkeys(case["data"] for case in report["cases"]):
        cases = [case for case in report["cases"] if case["data"] == name]
        pieces.append(
            f"**{name}**: {cases[0]['parameters']} parameters, {cases[0]['rows']:,} rows, "
            f"λ = {report['regularisation']:g}, Δ* = {report['target_distance']:g}, "
            f"δ = {report['delta']:g}; {report['draws']} erasures of each size."
        )
        pieces.append(_table(cases))
    return "\n\n".join(pieces)


def _table(cases: list[Report]) -> str:
    sizes = [case["batch"] for case in cases]
    head = (
        "what the attacker has",
        *(f"cosine, {size} erased" for size in sizes),
        "label by bias, by mean",
        "named by bias, by mean",
    )
    rows = []
    for attack in cases[0]["attacks"]:
        alone = cases[0]["attacks"][attack]
        cosines = (_cosine(case["attacks"][attack]) for case in cases)
        rows.append((attack, *cosines, _shares(alone, "label"), _shares(alone, "named")))
    return table(head, rows)


def _cosine(found: Report) -> str:
    return f"{points(found['cosine'])} ({points(found['cosine_low'])} … {points(found['cosine_high'])})"


def _shares(found: Report, figure: str) -> str:
    """Both rules' shares, or a dash where nothing was guessed."""
    if f"{figure}_bias" not in found:
        return "–"
    return ", ".join(f"{100 * found[f'{figure}_{rule}']:.0f} %" for rule in ("bias", "mean"))

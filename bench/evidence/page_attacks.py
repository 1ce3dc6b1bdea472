"""The sections on attacks: U-LiRA, and rebuilding erased rows from two versions of a model."""

from bench.evidence.markdown import Report, missing, points, table


def lira(report: Report | None) -> str:
    """Return the table of U-LiRA."""
    if report is None:
        return missing("python -m bench.evidence lira")
    intro = (
        f"**U-LiRA**, MNIST softmax: {report['base_rows']:,} rows stay, random halves of {report['rows']} "
        f"more are learned and then erased. {report['shadows']} shadow models, {report['targets']} attacked "
        "ones. `none` erases nothing and shows what the attack can find. `retrain` leaves nothing to find. "
        "`zhang2024` uses d = 0.01. A TPR is shown only if there are enough rows to measure it."
    )
    rows = []
    for method, result in report["methods"].items():
        out = result.get("released")
        cells = (_auc(result["before_noise"]), _tpr(result["before_noise"]))
        rows.append((f"`{method}`", *cells, *((_auc(out), _tpr(out)) if out else ("–", "–"))))
    head = ("method", "AUC before noise", "TPR at 1 % FPR", "AUC released", "TPR at 1 % FPR")
    return f"{intro}\n\n{table(head, rows)}"


def _auc(result: Report) -> str:
    auc = result["auc"]
    return f"{points(auc['value'])} ({points(auc['low'])} … {points(auc['high'])})"


def _tpr(result: Report) -> str:
    return "–" if result["tpr"] is None else points(result["tpr"]["value"])


def reconstruction(report: Report | None) -> str:
    """Return one table per dataset and model, with attacks down and batch sizes across."""
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


def _cosine(result: Report) -> str:
    return f"{points(result['cosine'])} ({points(result['cosine_low'])} … {points(result['cosine_high'])})"


def _shares(result: Report, figure: str) -> str:
    """Return the shares of both rules, or a dash if nothing was guessed."""
    if f"{figure}_bias" not in result:
        return "–"
    return ", ".join(f"{100 * result[f'{figure}_{rule}']:.0f} %" for rule in ("bias", "mean"))

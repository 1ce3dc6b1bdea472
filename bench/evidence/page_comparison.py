"""The sections that compare methods on one erasure: utility, membership, seconds and bounds."""

from typing import Any

from bench.evidence.markdown import Report, figure, loose, missing, number, points, spread, table

METHODS = ("guo2020", "zhang2024", "tr-paper", "tr")
NONE = "no valid certificate"


def runs_of(report: Report, method: str) -> list[Report]:
    """Return the results of one method, one per seed."""
    return [run["methods"][method] for run in report["runs"]]


def setting(report: Report) -> str:
    """Describe what was unlearned from what."""
    counts = sorted({run["erased"] for run in report["runs"]})
    erased = " to ".join(f"{count:,}" for count in dict.fromkeys((counts[0], counts[-1])))
    forward = loose([run["kl_retained_original"] for run in report["runs"]])
    backward = [run["kl_original_retained"] for run in report["runs"]]
    return (
        f"**{report['name']}**: {report['model']} on {report['sees']}; {report['dimension']:,} parameters, "
        f"{report['rows']:,} rows, λ = {report['lambda']:g}, Δ* = {report['target_distance']:g} "
        f"(`{report['tier']}`). Erased: {erased} rows, KL(P_R‖P_D) = {forward}, "
        f"KL(P_D‖P_R) = {loose([v for v in backward if v is not None])}; {_seeds(report)}."
    )


def utility(reports: list[Report]) -> str:
    """Return the tables of F1 and loss."""
    if not reports:
        return missing("python -m bench evidence")
    return "\n\n".join(f"{setting(report)}\n\n{_utility(report)}" for report in reports)


def delta(report: Report, method: str) -> list[float]:
    """Return ΔF1 of releases against retraining without noise."""
    return [
        run["retrain"]["f1"] - run["methods"][method]["released"]["f1"]
        for run in report["runs"]
        if run["methods"][method]["released"] is not None
    ]


def _utility(report: Report) -> str:
    head = ["method", "F1 retrained", "F1 before noise", "F1 released", "**ΔF1**", "ΔF1 before noise"]
    head += ["loss retrained", "loss released", "certificate"]
    rows = []
    for method in METHODS:
        result = runs_of(report, method)
        retrained = [run["retrain"]["f1"] for run in report["runs"]]
        before = [one["before_noise"]["f1"] for one in result]
        out = [one["released"] for one in result if one["released"] is not None]
        gaps = [a - b for a, b in zip(retrained, before, strict=True)]
        rows.append(
            (
                f"`{method}`",
                spread(retrained),
                spread(before),
                spread([one["f1"] for one in out]) if out else NONE,
                f"**{spread(delta(report, method))}**" if out else NONE,
                spread(gaps),
                spread([run["retrain"]["loss"] for run in report["runs"]], 4),
                _loss([one["loss"] for one in out]),
                _basis(result[0]),
            )
        )
    return table(head, rows)


def _loss(values: list[float]) -> str:
    if not values:
        return "–"
    return spread(values, 4) if max(values) < 100 else loose(values)


def _basis(result: Report) -> str:
    if result["distance_own"] is None:
        return f"none: {result['basis']}"
    first, *assumed = result["basis"].split("; ")
    lent = f"; assumed, not proved: {assumed[0]}" if assumed else ""
    return f"Δ = {number(result['distance_own'])}; {first}{lent}"


def membership(reports: list[Report]) -> str:
    """Return the tables of membership inference."""
    if not reports:
        return missing("python -m bench evidence")
    return "\n\n".join(f"**{report['name']}**, {_matched(report)}\n\n{_attack(report)}" for report in reports)


def _matched(report: Report) -> str:
    seen = report["runs"][0]["methods"]["tr"]["membership"]["before_noise"]
    return f"{seen['members']:,} erased and {seen['unseen']:,} unseen rows of the same class mix."


def _attack(report: Report) -> str:
    head = ["method", "AUC retrained", "AUC unlearned", "**ΔAUC**", "95 % (hull over seeds)"]
    head += ["TPR at 1 % FPR, retrained", "unlearned", "AUC fitted attack, retrained", "unlearned"]
    head += ["ΔAUC before noise"]
    rows = []
    for method in METHODS:
        every = [one["membership"] for one in runs_of(report, method)]
        before = _gap(every[0]["before_noise"])
        out = [one["released"] for one in every if one["released"] is not None]
        if not out:
            rows.append((f"`{method}`", *([NONE] + ["–"] * 7), before))
            continue
        rows.append(
            (
                f"`{method}`",
                _mean(out, "retrained", "auc_loss"),
                _mean(out, "unlearned", "auc_loss"),
                f"**{spread([one['delta_auc_loss']['value'] for one in out])}**",
                _hull([one["delta_auc_loss"] for one in out]),
                _mean(out, "retrained", "tpr_loss"),
                _mean(out, "unlearned", "tpr_loss"),
                _mean(out, "retrained", "auc_fitted"),
                _mean(out, "unlearned", "auc_fitted"),
                before,
            )
        )
    return table(head, rows)


def _gap(result: Report) -> str:
    gap = result["delta_auc_loss"]
    return f"{points(gap['value'])} ({points(gap['low'])} … {points(gap['high'])})"


def _mean(result: list[Report], model: str, figure_name: str) -> str:
    values = [one[model][figure_name] for one in result]
    known = [value["value"] for value in values if value is not None]
    return points(sum(known) / len(known)) if known else "–"


def _hull(result: list[Report]) -> str:
    return f"{points(min(one['low'] for one in result))} … {points(max(one['high'] for one in result))}"


def seconds(reports: list[Report]) -> str:
    """Return the table of costs."""
    if not reports:
        return missing("python -m bench evidence")
    head = ("", *(f"`{method}`" for method in METHODS), "retrained", "`tr` against retraining")
    rows = []
    for report in reports:
        again = [run["retrain"]["processor_seconds"] for run in report["runs"]]
        cells = [[one["processor_seconds"] for one in runs_of(report, method)] for method in METHODS]
        ratio = sum(cells[-1]) / sum(again)
        rows.append(
            (f"{report['name']}, processor s", *(loose(c) for c in cells), loose(again), f"{ratio:.2f} times")
        )
        wall = [[one["seconds"] for one in runs_of(report, method)] for method in METHODS]
        again = [run["retrain"]["seconds"] for run in report["runs"]]
        rows.append(("wall s", *(loose(c) for c in wall), loose(again), ""))
        passes = [[one["passes"] for one in runs_of(report, method)] for method in METHODS]
        again = [run["retrain"]["passes"] for run in report["runs"]]
        ratio = sum(passes[-1]) / sum(again)
        rows.append(("full passes", *(loose(c) for c in passes), loose(again), f"{ratio:.2f} times"))
    return table(head, rows)


def bounds(reports: list[Report]) -> str:
    """Return the table of bounds and distances."""
    if not reports:
        return missing("python -m bench evidence")
    head = ("", "method", "true distance", "own Δ", "own Δ / true", "B1 or B2 there", "σ required", "ΔF1")
    rows = []
    for report in reports:
        for method in METHODS:
            result = runs_of(report, method)
            true = [one["true_distance"] for one in result]
            own = [one["distance_own"] for one in result if one["distance_own"] is not None]
            post = [one["distance_posterior"] for one in result if one["distance_posterior"] is not None]
            sigma = [one["sigma"] for one in result if one["sigma"] is not None]
            ratio = [o / t for o, t in zip(own, true, strict=False) if t > 0]
            rows.append(
                (
                    report["name"] if method == METHODS[0] else "",
                    f"`{method}`",
                    loose(true),
                    loose(own) if own else NONE,
                    loose(ratio),
                    loose(post),
                    loose(sigma) if sigma else NONE,
                    spread(delta(report, method)),
                )
            )
    return "\n\n".join([table(head, rows), *_pictures(reports)])


def _pictures(reports: list[Report]) -> list[str]:
    if not any("f1_by_sigma" in report for report in reports):
        return []
    return [figure("f1_sigma", "F1 against the noise, with the noise that each method's bound requires")]


def _seeds(report: dict[str, Any]) -> str:
    count = len(report["runs"])
    return f"{count} seeds" if count > 1 else "one seed"

"""The section on networks linearised at a public anchor."""

from bench.evidence.markdown import Report, missing, number, points, table

CASES = ("mnist", "cifar10_block", "cifar10", "resnet18")
DATA = "data, network"
_SCORES = (
    "rows", "erased", "KL(P_R‖P_D)", "F1 anchor", "F1 before", "F1 retrained", "**F1 released**", "**ΔF1**",
    "95 %", "assurance",
)  # fmt: skip
_COST = (
    "train", "unlearn", "retrain", "unlearn s", "retrain s", "0.1 % erased: retrain", "unlearn", "**share**",
    "unlearn s", "retrain s", "with a sketch", "share with", "preparing the sketch",
)  # fmt: skip
_SETTINGS = (
    "parameters", "public rows", "λ", "Δ*", "certified Δ", "e/λ", "σ", "products with, without K",
    "load, commit",
)  # fmt: skip

Row = tuple[str, ...]


def linearised(report: Report | None) -> str:
    """Return the tables of quality, cost and settings, and the baselines on the network itself."""
    if report is None:
        return missing("python -m bench linearised")
    cases = [report[name] for name in CASES if name in report]
    sections = [
        table((DATA, *_SCORES), map(_quality, cases)),
        _conditional(report),
        "Full passes over the rows, in which a Jacobian-vector and a vector-Jacobian product count as one.",
        table((DATA, *_COST), map(_cost, cases)),
        table((DATA, *_SETTINGS), map(_settings, cases)),
        _serving(report.get("serving", [])),
        *(_absent(name) for name in CASES if name not in report),
    ]
    return "\n\n".join(section for section in sections if section)


def _conditional(report: Report) -> str:
    other = report.get("conditional")
    if other is None:
        return ""
    return (
        f"Beside it in the same run: {other['title']}, λ = {other['lambda']:g}, released F1 "
        f"{points(other['f1_before'])}."
    )


def _quality(case: Report) -> Row:
    low, high = case["delta_f1_interval"]
    return (
        case["title"],
        f"{case['rows']:,} and {case['holdout_rows']:,} held out",
        f"{case['erased']:,}, mostly {case['biased_by']}",
        f"{case['kl']:.3f}",
        points(case["f1_anchor"]),
        points(case["f1_before"]),
        points(case["f1_retrained"]),
        f"**{points(case['f1_released'])}**",
        f"**{points(case['delta_f1'])}**",
        f"{points(low)} … {points(high)}",
        f"`{case['assurance']}`",
    )


def _cost(case: Report) -> Row:
    return (
        case["title"],
        f"{case['train_passes']:.1f}",
        f"{case['passes_unlearn']:.1f}",
        f"{case['passes_retrain']:.1f}",
        number(case["unlearn_seconds"]),
        number(case["retrain_seconds"]),
        *_small(case.get("small_erasure")),
    )


def _small(small: Report | None) -> Row:
    """Return the passes of the small erasure without and with a sketch, and their shares of retraining."""
    if small is None:
        return ("not measured", *["–"] * 7)
    without, sketched, preparation = small["without_sketch"], small["with_sketch"], small["preparation"]
    alone = (
        f"{small['passes_retrain']:.1f}",
        _draws(without),
        f"**{100 * without['ratio']:.0f} %**",
        number(without["unlearn_seconds"]),
        number(small["retrain_seconds"]),
    )
    if sketched is None:
        return (*alone, "not measured", "–", "–")
    prepared = f"{preparation['passes']} passes for {preparation['directions']} directions"
    return (*alone, _draws(sketched), f"{100 * sketched['ratio']:.0f} %", prepared)


def _draws(costs: Report) -> str:
    """Return the mean over the published versions, and the range if they differ."""
    low, high = (f"{bound(costs['draws']):.1f}" for bound in (min, max))
    return f"{costs['passes_unlearn']:.1f}" + ("" if low == high else f" ({low} … {high})")


def _settings(case: Report) -> Row:
    products = case["preconditioner"]
    return (
        case["title"],
        f"{case['dimension']:,}",
        f"{case['public_rows']:,}",
        f"{case['lambda']:g}",
        f"{case['target_distance']:g}",
        number(case["certified_distance"]),
        number(case["rounding_over_lambda"]),
        number(case["sigma"]),
        f"{products['with']}, {products['without']}",
        f"{case['load_at_end']:.1f}, {case['commit']}",
    )


def _serving(measured: list[Report]) -> str:
    if not measured:
        return ""
    head = ("a prediction for 1,000 rows, whole network", "network ms", "linearised ms", "ratio")
    rows = [
        (
            run["title"],
            f"{1000 * run['network_seconds']:.1f}",
            f"{1000 * run['linearised_seconds']:.1f}",
            f"{run['ratio']:.1f}",
        )
        for run in measured
    ]
    return f"Processor time of a prediction, median of 20.\n\n{table(head, rows)}"


def _absent(name: str) -> str:
    return f"The case `{name}` was not measured. Run `BENCH_CASE={name} python -m bench linearised`."

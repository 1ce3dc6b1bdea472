"""The sections along an axis: class drift, share erased, lifetime and growth."""

from collections.abc import Callable
from typing import Any

from bench.evidence.markdown import Report, figure, missing, number, points, spread, table
from bench.evidence.page_comparison import METHODS, NONE


def sweep(reports: list[Report]) -> str:
    """Return ΔF1 against KL."""
    if not reports:
        return missing("python -m bench.evidence sweep_mnist sweep_cifar")
    pieces = [figure("delta_f1_kl", "ΔF1 against KL(P_R‖P_D), one panel per data set, every method")]
    for report in reports:
        pieces.append(
            f"**{report['name']}**, {report['model']} on {report['sees']}, {report['rows']:,} rows, "
            f"{len(report['seeds'])} seeds. ΔF1 of releases, then before noise:"
        )
        pieces.append(_by_kl(report, _released))
        pieces.append(_by_kl(report, _before))
    return "\n\n".join(pieces)


def seconds(reports: list[Report]) -> str:
    """Return processor seconds against KL."""
    if not reports:
        return missing("python -m bench.evidence sweep_mnist sweep_cifar")
    pieces = [figure("seconds_kl", "processor seconds against KL(P_R‖P_D), every method and retraining")]
    for report in reports:
        pieces.append(f"Processor seconds against KL, {report['name']}, {report['rows']:,} rows:")
        pieces.append(_by_kl(report, lambda _, result: result["processor_seconds"], retrain=True))
    return "\n\n".join(pieces)


def _by_kl(report: Report, value: Callable[[Report, Report], float | None], *, retrain: bool = False) -> str:
    kls = sorted({point["kl_asked"] for point in report["points"]})

    def cell(kl: float, method: str) -> str:
        here = [point for point in report["points"] if point["kl_asked"] == kl]
        if method == "retrained":
            return spread([point["retrain"]["processor_seconds"] for point in here])
        known = [value(point, point["methods"][method]) for point in here]
        values = [v for v in known if v is not None]
        return spread(values) if values else NONE

    head = ("", *(f"KL {kl:.2f}" if kl else "KL 0, i.i.d." for kl in kls))
    names = (*METHODS, "retrained") if retrain else METHODS
    return table(head, [(f"`{name}`", *(cell(kl, name) for kl in kls)) for name in names])


def _released(point: Report, result: Report) -> float | None:
    out = result["released"]
    return None if out is None else float(point["retrain"]["f1"] - out["f1"])


def _before(point: Report, result: Report) -> float:
    return float(point["retrain"]["f1"] - result["before_noise"]["f1"])


def ratio(report: Report | None) -> str:
    """Return KL against the number of rows erased without bias."""
    if report is None:
        return missing("python -m bench.evidence ratio")
    names = list(report["data"])
    head = ("rows erased", *(f"{name} ({report['data'][name]['rows']:,} rows)" for name in names))
    rows = []
    for index, entry in enumerate(report["data"][names[0]]["erased"]):
        cells = (report["data"][name]["erased"][index]["kl_retained_original"] for name in names)
        rows.append((f"{entry['count']:,}", *(_tiny(cell) for cell in cells)))
    intro = "KL(P_R‖P_D) of rows erased without regard to class. Mean and range over three seeds."
    return f"{intro}\n\n{table(head, rows)}"


def _tiny(values: list[float]) -> str:
    mean, low, high = (f"{v:.1e}" for v in (sum(values) / len(values), min(values), max(values)))
    return f"{mean} ({low} … {high})"


def lifetime(report: Report | None) -> str:
    """Return the table over batches."""
    if report is None:
        return missing("python -m bench.evidence lifetime")
    batches = report["batches"]
    selected = [b for b in batches if b["batch"] == 1 or b["batch"] % 10 == 0]
    head = ["batch", "rows erased so far", "KL(P_R‖P_D)", "ε so far", "certified Δ", "true distance"]
    head += ["F1 published", "F1 retrained", "processor s", "retraining, processor s"]
    rows = [
        (
            str(b["batch"]),
            f"{b['erased']:,}",
            f"{b['kl_retained_original']:.4f}",
            f"{b['epsilon']:.2f}",
            number(b["certified_distance"]),
            number(b["true_distance"]),
            points(b["f1"]),
            points(b["f1_retrained"]),
            number(b["processor_seconds"]),
            number(b["retrain_processor_seconds"]),
        )
        for b in selected
    ]
    return "\n\n".join(
        [
            f"MNIST softmax, {report['rows']:,} rows, {len(batches)} batches of {report['rows_a_batch']} "
            f"with the paper's class weights, Δ* = {report['target_distance']:g}, "
            f"σ = {number(report['sigma'])}, ε = {report['epsilon_of_a_release']:g} per release. "
            f'"ε so far" is that of a subject of the first batch, at δ = {report["delta"]:g}, '
            f"composed exactly. {_trend(batches)}",
            table(head, rows),
            figure("lifetime", "distance, F1, ε and seconds over the batches"),
        ]
    )


def _trend(batches: list[dict[str, Any]]) -> str:
    true = [b["true_distance"] for b in batches]
    half = len(true) // 2
    gaps = [b["f1_retrained"] - b["f1"] for b in batches]
    certified = sum(b["outcome"] == "CERTIFIED" for b in batches)
    first, second = sum(true[:half]) / half, sum(true[half:]) / (len(true) - half)
    return (
        f"Certified: {certified} of {len(batches)}. Largest true distance {number(max(true))}; mean of the "
        f"first half {number(first)}, of the second {number(second)}. ΔF1 {spread(gaps)}."
    )


def growth(report: Report | None) -> str:
    """Return the table of scaling."""
    if report is None:
        return missing("python -m bench.evidence growth")
    head = ["what grows", "data", "rows", "parameters", "erased", "passes", "processor s", "wall s"]
    head += ["peak MB beyond the rows", "rows, MB"]
    rows = []
    for axis in ("rows", "batch", "parameters"):
        for index, point in enumerate(report[axis]):
            rows.append(
                (
                    axis if index == 0 else "",
                    point["data"],
                    f"{point['rows']:,}",
                    f"{point['parameters']:,}",
                    f"{point['erased']:,}",
                    f"{point['passes']:.1f}",
                    number(point["processor_seconds"]),
                    number(point["seconds"]),
                    _whole(point["peak_megabytes_beyond_rows"]),
                    f"{point['rows_megabytes']:.0f}",
                )
            )
    return table(head, rows)


def _whole(value: float | None) -> str:
    return "not reported by the system" if value is None else f"{value:.0f}"

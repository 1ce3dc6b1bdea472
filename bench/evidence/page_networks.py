"""The networks' part of the page."""

from bench.evidence.markdown import Report, missing, number, points, table


def networks(report: Report | None) -> str:
    """Quality, what it costs, and how that depends on the size of the erasure."""
    if report is None:
        return f"**Networks.** {missing('python -m bench networks')}"
    cases = [(name, report[name]) for name in ("MNIST", "CIFAR-10") if name in report]
    head = ["network", "λ", "erased", "KL(P_R‖P_D)", "certified Δ", "true distance", "h"]
    head += ["F1 retrained, noised", "F1 released", "ΔF1"]
    bill = [
        "network",
        "unlearn",
        "retrain",
        "unlearn / retrain",
        "to go as near as B2 asks",
        "B2's measurements",
    ]
    sizes = [
        "network",
        "rows erased",
        "‖g‖ at the version",
        "‖g‖ at the anchor",
        "unlearn",
        "retrain",
        "ratio",
    ]
    says = (
        "**Networks**, from a version published with noise; retraining is by the same solver, from the "
        "anchor, to the same gradient. Costs in full passes, a product counting as one. A retrained model "
        "needs no B2."
    )
    tables = (
        table(head, [_quality(name, case) for name, case in cases]),
        table(bill, [_bill(name, case) for name, case in cases]),
        table(sizes, [row for name, case in cases for row in _by_erasure(name, case)]),
    )
    return "\n\n".join((says, *tables))


def _quality(name: str, case: Report) -> tuple[str, ...]:
    proof = case["certificate"]
    certified = proof["verdict"].startswith("certified")
    return (
        f"{name}, {case['dimension']:,} parameters, {case['rows']['private']:,} rows",
        f"{case['lambda']:g}",
        f"{case['rows']['erased']:,}",
        f"{case['kl_retained_original']:.3f}",
        number(proof["distance"]) if certified else proof["verdict"],
        number(case["true_distance"]),
        f"{proof['h']:.2f}",
        points(case["f1"]["retrained"]),
        points(case["f1"]["unlearned"]),
        points(case["f1"]["delta"]),
    )


def _bill(name: str, case: Report) -> tuple[str, ...]:
    solves = (case[kind]["passes"] for kind in ("unlearn", "retrain"))
    proof = case["certificate"]
    ratio = f"{case['passes_ratio']:.2f}"
    return (
        name,
        *(f"{it:.1f}" for it in solves),
        ratio,
        f"{proof['solve_passes']:.1f}",
        f"{proof['passes']:.1f}",
    )


def _by_erasure(name: str, case: Report) -> list[tuple[str, ...]]:
    return [
        (
            name,
            f"{it['erased']:,}",
            *(number(norm) for norm in it["start_gradients"]),
            f"{it['unlearn_passes']:.1f}",
            f"{it['retrain_passes']:.1f}",
            f"{it['ratio']:.2f}",
        )
        for it in case["by_erasure"]
    ]

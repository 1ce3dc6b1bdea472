"""What other parts of the bench measured, as far as they were run."""

from pathlib import Path

from bench.evidence.markdown import Report, missing, number, read, table
from bench.evidence.page_networks import networks


def gateway(report: Report | None) -> str:
    if report is None:
        return missing("python -m bench gateway")
    rows = []
    for database in ("postgresql", "sqlite"):
        for connections, found in report[database]["connections"].items():
            for kind, rate in found["requests_per_second"].items():
                rows.append((database, str(connections), kind, f"{rate:.0f}", f"{found['p99_ms'][kind]:.0f}"))
    says = (
        "Erasure requests acknowledged per second. `real` is the gateway; `immediate` answers without a "
        "database, `plain` takes a transaction per request."
    )
    head = ("database", "connections", "gateway", "requests/s", "p99 ms")
    return f"{says}\n\n{table(head, rows)}"


def rest(folder: Path) -> str:
    return "\n\n".join(
        [
            _engine(read(folder, "engine")),
            networks(read(folder, "networks")),
            _ranks(read(folder, "ranks")),
            _examples(read(folder, "paper_examples")),
        ]
    )


def _engine(report: Report | None) -> str:
    if report is None:
        return f"**Engine.** {missing('python -m bench engine')}"
    rows = []
    for erased in (8000, 60):
        for name, cost in report[f"erase_{erased}"]["cost"].items():
            rows.append((f"{erased:,}", name, number(cost["seconds"]), f"{cost['passes']:.1f}"))
    says = (
        "**Engine**, MNIST softmax, 60,000 rows, to a certified Δ ≤ 0.01: unlearning, retraining, L-BFGS, "
        "and one certified gradient (the floor). Medians."
    )
    return f"{says}\n\n{table(('rows erased', '', 'seconds', 'full passes'), rows)}"


def _ranks(report: Report | None) -> str:
    if report is None:
        return f"**Several processes.** {missing('python -m bench.ranks')}"
    rows = []
    for family in ("softmax", "mlp"):
        for work in ("pass", "product"):
            found = report[family][work]
            rows.append(
                (
                    f"{family}, {report[family]['parameters']:,} parameters, one {work}",
                    number(found["seconds_one"]),
                    number(found["seconds_two"]),
                    f"{found['speed_up']:.2f}",
                    f"{sum(found['bytes'].values()):,}",
                )
            )
    head = ("", "s on one rank", "s on two", "speed-up", "bytes exchanged")
    return f"**Several processes**, {report['rows']:,} rows, a thread each:\n\n{table(head, rows)}"


def _examples(report: Report | None) -> str:
    if report is None:
        return f"**The paper's statements.** {missing('python -m bench.paper_examples')}"
    rivals, cap = report["rivals"], report["cap"]
    rows = [
        ("before unlearning", cap["start"]),
        ("ten capped steps", cap["capped_10_steps"]),
        ("`guo2020`", rivals["guo2020"]),
        *((f"`zhang2024`, d = {d}", found) for d, found in rivals["zhang2024"].items()),
        ("`tr`", rivals["ours"]),
    ]
    says = (
        f"**The paper's statements** on MNIST softmax, {report['rows']:,} rows, {report['erased']:,} erased; "
        "[paper.md](paper.md) has them one by one."
    )
    cells = [(name, number(found["true"]), number(found["b1"])) for name, found in rows]
    return f"{says}\n\n{table(('', 'true distance', 'B1'), cells)}"

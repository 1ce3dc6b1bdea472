"""The sections on the other parts of the benchmark: gateway, latency, engine, networks, ranks, paper."""

from pathlib import Path

from bench.evidence.markdown import Report, missing, number, points, read, table


def gateway(report: Report | None) -> str:
    """Return the table of gateway throughput."""
    if report is None:
        return missing("python -m bench gateway")
    rows = []
    for database in ("postgresql", "sqlite"):
        for connections, result in report[database]["connections"].items():
            for kind, rate in result["requests_per_second"].items():
                rows.append(
                    (database, str(connections), kind, f"{rate:.0f}", f"{result['p99_ms'][kind]:.0f}")
                )
    intro = (
        "Erasure requests acknowledged per second. `real` is the gateway, `immediate` answers without a "
        "database, and `plain` uses one transaction per request."
    )
    head = ("database", "connections", "gateway", "requests/s", "p99 ms")
    return f"{intro}\n\n{table(head, rows)}"


def scale(report: Report | None) -> str:
    """Return the table of how lists, pages, metrics and sealing behave in a large installation."""
    if report is None:
        return missing("python -m bench scale")
    rows = []
    for database in ("postgresql", "sqlite"):
        for operation, result in report[database].items():
            first = result["large"].get("first_seconds")
            rows.append(
                (
                    database,
                    f"`{operation}`",
                    f"{result['small']['seconds'] * 1e3:.1f}",
                    f"{result['large']['seconds'] * 1e3:.1f}",
                    "–" if first is None else f"{first * 1e3:.1f}",
                    f"{result['times']:.2f}",
                )
            )
    intro = (
        "The same operations in a small installation (500 waiting erasures, 50 models, 100 certificates) and "
        "in a large one (100,000 waiting erasures, 200 models, 10,000 certificates), in milliseconds: the "
        "median, and the first call, which finds no cached figures. The last column compares the time per "
        "item shown."
    )
    head = ("database", "operation", "small", "large", "large, first call", "large / small per item")
    return f"{intro}\n\n{table(head, rows)}"


def latency(report: Report | None) -> str:
    """Return the table of what an erasure takes in the service."""
    if report is None:
        return missing("python -m bench latency")
    erasure, jobs = report["erasure"], report["jobs"]
    rows = [
        (name, number(erasure[key]))
        for name, key in (
            ("from sealed to completed, as the service records it", "sealed_to_completed"),
            ("of this, the solve", "solve"),
            ("of this, everything else", "beyond_solve"),
            ("from the request until a waiting client knows", "client_waited"),
        )
    ]
    intro = (
        f"`lethe up` on embedded defaults, MNIST with softmax regression, {erasure['rows']:,} rows, "
        f"{erasure['people']} people erased. Medians of {len(erasure['rounds'])} erasures."
    )
    small = (
        f"One worker completed {jobs['jobs']} jobs on models of {jobs['rows']:,} rows in "
        f"{number(jobs['seconds'])} s, which is {jobs['per_minute']:.0f} per minute."
    )
    return f"{intro}\n\n{table(('', 'seconds'), rows)}\n\n{small}{_idle_memory(report)}"


def _idle_memory(report: Report) -> str:
    """Return a sentence on the memory of an idle worker, if the run measured it."""
    memory = report.get("idle_memory")
    if memory is None:
        return ""
    return (
        f" Between jobs, the worker uses {memory['worker'] / 1e6:.0f} MB and the process that keeps PyTorch "
        f"imported for it {memory['fork_server'] / 1e6:.0f} MB (resident memory, which includes shared "
        "libraries)."
    )


def rest(folder: Path) -> str:
    """Return the sections on engine, networks, ranks and the paper."""
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
    intro = (
        "**Engine**, MNIST softmax, 60,000 rows, to a certified Δ ≤ 0.01: unlearning, retraining, L-BFGS, "
        "and a single certified gradient (`floor`, the minimum). Medians."
    )
    costs = f"{intro}\n\n{table(('rows erased', '', 'seconds', 'full passes'), rows)}"
    if not report["bars"]["60 rows, no sketch: times faster than our retraining"]["met"]:
        costs += (
            "\n\nWithout a sketch, erasing 60 rows misses its target of three times faster than retraining. "
            "It needs two gradients in float32 and the final one in float64, which takes as long as two of "
            "them. Retraining needs only five or six more in float32, with their products."
        )
    return "\n\n".join([costs, *_prepared(report.get("prepared"))])


def _prepared(report: Report | None) -> list[str]:
    """Return the paragraph and the table on erasures that find a curvature sketch, if they were measured."""
    if report is None:
        return []
    before = report.get("before", {}).get("erasures", {})
    rows = []
    for name, figures in report["erasures"].items():
        earlier = before.get(name)
        fitted, prepared = figures.get("sklearn"), figures["preparation"]
        rows.append(
            (
                name,
                *(_cost(figures[run]) for run in ("unlearn", "without_sketch", "retrain")),
                f"{figures['retrain']['seconds'] / figures['unlearn']['seconds']:.1f}",
                "–" if fitted is None else number(fitted["seconds"]) + ("" if fitted["reached"] else " ¹"),
                f"{number(prepared['seconds'])} s, {prepared['bytes'] / 2**20:.0f} MB",
                "–" if earlier is None else _cost(earlier["unlearn"]),
                "–" if earlier is None else _cost(earlier["retrain"]),
            )
        )
    head = (
        "rows erased",
        "unlearning",
        "without a sketch",
        "retraining",
        "times faster",
        "scikit-learn",
        "preparation",
        "unlearning before",
        "retraining before",
    )
    intro = (
        "**Erasures that find a curvature sketch**: CIFAR-10 as 1,280 features of EfficientNet-Lite0, "
        "Δ* = 0.001, and MNIST pixels, Δ* = 0.01; λ = 1e-4. Seconds, with full passes in brackets, medians. "
        "An idle worker prepares the sketch; its time is not part of the erasure. scikit-learn's "
        "`LogisticRegression` runs once, to the same gradient norm of the same objective"
    )
    missed = any(
        not (row.get("sklearn") or {"reached": True})["reached"] for row in report["erasures"].values()
    )
    note = " (¹ it stopped earlier, at the time shown)." if missed else "."
    commit = report.get("before", {}).get("machine", {}).get("commit")
    then = f" The last two columns are from commit {commit}, before there were sketches." if before else ""
    return [intro + note + then, table(head, rows)]


def _cost(figures: Report) -> str:
    return f"{number(figures['seconds'])} ({figures['passes']:.1f})"


def _ranks(report: Report | None) -> str:
    if report is None:
        return f"**Several processes.** {missing('python -m bench.ranks')}"
    rows = []
    for family in ("softmax", "mlp"):
        for work in ("pass", "product"):
            result = report[family][work]
            rows.append(
                (
                    f"{family}, {report[family]['parameters']:,} parameters, one {work}",
                    number(result["seconds_one"]),
                    number(result["seconds_two"]),
                    f"{result['speed_up']:.2f}",
                    f"{sum(result['bytes'].values()):,}",
                )
            )
    head = ("", "s on one rank", "s on two ranks", "speed-up", "bytes exchanged")
    return f"**Several processes**, {report['rows']:,} rows, one thread each:\n\n{table(head, rows)}"


def _examples(report: Report | None) -> str:
    if report is None:
        return f"**The paper's statements.** {missing('python -m bench.paper_examples')}"
    rivals, cap = report["rivals"], report["cap"]
    rows = [
        ("before unlearning", cap["start"]),
        ("ten capped steps", cap["capped_10_steps"]),
        ("`guo2020`", rivals["guo2020"]),
        *((f"`zhang2024`, d = {d}", result) for d, result in rivals["zhang2024"].items()),
        ("`tr`", rivals["ours"]),
    ]
    intro = (
        f"**The paper's statements** on MNIST softmax, {report['rows']:,} rows, {report['erased']:,} erased; "
        "[paper.md](paper.md) discusses them one by one."
    )
    cells = [(name, number(result["true"]), number(result["b1"])) for name, result in rows]
    return f"{intro}\n\n{table(('', 'true distance', 'B1'), cells)}"


def networks(report: Report | None) -> str:
    """Return tables of quality, cost, and cost by size of the erasure."""
    if report is None:
        return f"**Networks.** {missing('python -m bench networks')}"
    cases = [(name, report[name]) for name in ("MNIST", "CIFAR-10") if name in report]
    head = ["network", "λ", "erased", "KL(P_R‖P_D)", "certified Δ", "true distance", "h"]
    head += ["F1 retrained, noised", "F1 released", "ΔF1"]
    bill = [
        "network",
        "unlearn",
        "without a sketch",
        "retrain",
        "unlearn / retrain",
        "further solving for B2",
        "measurements for B2",
    ]
    sizes = [
        "network",
        "rows erased",
        "‖g‖ at the published version",
        "‖g‖ at the anchor",
        "unlearn",
        "without a sketch",
        "retrain",
        "ratio",
    ]
    intro = (
        "**Networks**, starting from a version published with noise. Retraining uses the same solver, from "
        "the anchor to the same gradient. Costs are in full passes, and a product counts as one. A retrained "
        "model needs no B2. Most passes are gradients, one for each step, and the largest erasure leaves "
        "‖g‖ at the published version about as large as at the anchor. So unlearning takes about as many "
        "steps as retraining."
    )
    if all("without_sketch" in case for _, case in cases):
        intro += (
            " Unlearning finds a curvature sketch that an idle worker has prepared. It saves products, which "
            "retraining has to pay for."
        )
    else:
        intro += " These figures are from before networks had curvature sketches (–)."
    tables = (
        table(head, [_quality(name, case) for name, case in cases]),
        table(bill, [_bill(name, case) for name, case in cases]),
        table(sizes, [row for name, case in cases for row in _by_erasure(name, case)]),
    )
    return "\n\n".join((intro, *tables))


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
    solves = (case.get(kind, {}).get("passes") for kind in ("unlearn", "without_sketch", "retrain"))
    proof = case["certificate"]
    ratio = f"{case['passes_ratio']:.2f}"
    return (
        name,
        *("–" if it is None else f"{it:.1f}" for it in solves),
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
            f"{it['passes_without_sketch']:.1f}" if "passes_without_sketch" in it else "–",
            f"{it['retrain_passes']:.1f}",
            f"{it['ratio']:.2f}",
        )
        for it in case["by_erasure"]
    ]

"""`make demo`: one erasure end to end on embedded defaults, through the public API, as a user would.

Trains a classifier on scikit-learn's handwritten digits, whose writers hold several rows each, erases a
biased set of writers, verifies the certificate of the published model offline, and audits it by replay.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from safetensors.torch import load

from bench import demo_report
from bench.demo_data import Digits, Rows, digits
from bench.demo_service import Api, DemoFailed, console, service
from certificate.cli import run_verify
from worker.engine.families import Softmax
from worker.engine.rows import ArrayRows
from worker.engine.training import train
from worker.engine.trust_region import minimise

LAMBDA = 1e-3
TARGET = 1e-4
REQUESTS = 4
REPORT = Path("lethe-report")
MANIFEST: dict[str, Any] = {
    "family": "softmax",
    "width": 64,
    "classes": 10,
    "lambda": LAMBDA,
    "origins": {"features": "raw pixels divided by 16 · 8", "constants": "chosen before the data was seen"},
    "policy": {"epsilon": 1.0, "delta": 1e-5, "target_distance": TARGET, "batch_subjects": 1000},
}
STEPS = ("resolve", "solve", "certify", "release", "purge")
CHECKPOINT = "/v1/models/digits/versions/current/checkpoint"


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="lethe-demo-") as folder:
        try:
            with service(Path(folder)) as api:
                _run(api, Path(folder), digits())
        except DemoFailed as problem:
            console.print(f"[red]The demonstration failed:[/] {problem}")
            return 1
    return 0


def _run(api: Api, folder: Path, data: Digits) -> None:
    console.print(f"Registering a classifier of {len(data.train.labels)} digits, trained by the service …")
    api.call("POST", "/v1/models", json={"name": "digits", "manifest": MANIFEST})
    api.call("PUT", "/v1/models/digits/dataset/part0", content=data.train.parquet())
    api.call("PUT", "/v1/models/digits/holdout/part0", content=data.holdout.parquet())
    api.call("POST", "/v1/models/digits/validate")
    model = api.wait("/v1/models/digits", good="ready", bad=("rejected",))
    before = api.report("/v1/models/digits/evaluations")
    original = api.download(CHECKPOINT)

    task = _erase(api, data.erase)
    evidence, said = _verify(api, folder, task)
    console.print("Auditing by replay, and scoring beside retraining …")
    audit = api.report(f"/v1/certificates/{task['certificate_id']}/audits")
    after = api.report("/v1/models/digits/evaluations")
    if not audit["verdict"].startswith("consistent"):
        raise DemoFailed(f"the replay audit says: {audit['summary']}")
    summary = _summary(api, model, task, evidence, before, after, audit)
    summary["distance"] += f", true {_true_distance(data, original):.2e} (the same solve replayed here)"
    _show(summary, evidence, said)


def _erase(api: Api, writers: list[str]) -> Any:
    """Post the requests, follow the batch live, and give back the task of the first."""
    console.print(f"{len(writers)} writers ask to be erased, in {REQUESTS} requests …")
    asked = [
        api.call("POST", "/v1/erasures", json={"subjects": writers[i::REQUESTS], "reference": f"demo-{i}"})
        for i in range(REQUESTS)
    ]
    api.call("POST", "/v1/models/digits/flush")
    where = f"/v1/erasures/{asked[0]['id']}"
    while not (batch_id := api.call("GET", where)["tasks"][0]["batch_id"]):
        pass
    _follow(api, batch_id)
    for erasure in asked:
        done = api.wait(f"/v1/erasures/{erasure['id']}", good="completed", bad=("failed",))
    return done["tasks"][0]


def _follow(api: Api, batch_id: str) -> None:
    columns = (TextColumn("{task.description:<34}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("waiting for a worker", total=len(STEPS))
        for kind, data in api.events(f"/v1/batches/{batch_id}/events"):
            if kind == "step" and data["step"] in STEPS:
                progress.update(bar, completed=STEPS.index(data["step"]), description=data["step"])
            elif kind == "progress":
                gradient = f"solve: ‖g‖ = {data['gradient_norm']:.1e}, Δ ≈ {data['distance']:.1e}"
                progress.update(bar, description=gradient)
        progress.update(bar, completed=len(STEPS), description="completed")


def _verify(api: Api, folder: Path, task: dict[str, Any]) -> tuple[Any, list[str]]:
    where = f"/v1/certificates/{task['certificate_id']}"
    (folder / "model.safetensors").write_bytes(api.download(CHECKPOINT))
    for name, path in {"pack": f"{where}/pack", "evidence": f"{where}/evidence", "keys": "/v1/keys"}.items():
        (folder / f"{name}.json").write_bytes(api.download(path))
    said: list[str] = []
    code = run_verify(
        pack=folder / "pack.json",
        model=folder / "model.safetensors",
        evidence=folder / "evidence.json",
        keys=folder / "keys.json",
        write=said.append,
    )
    console.rule("lethe verify pack.json --model model.safetensors --evidence evidence.json --keys keys.json")
    console.print("\n".join(said), markup=False, highlight=False)
    console.rule()
    if code != 0:
        raise DemoFailed("the certificate does not verify")
    return api.call("GET", f"{where}/evidence"), said


def _true_distance(data: Digits, original: bytes) -> float:
    """‖w̃ - ŵ_R‖: the published weights are noised, so the solve is run again here, and solved to the end."""
    kept = _objective(data.train.without(set(data.erase)))
    unlearned = minimise(kept, kept.flatten(load(original)), target=TARGET)
    retrained = train(kept, target=TARGET / 1e4)
    return float((unlearned.w - retrained.w).norm())


def _objective(rows: Rows) -> Softmax:
    return Softmax(ArrayRows(rows.pixels, rows.labels), 10, LAMBDA)


def _summary(
    api: Api, model: Any, task: Any, evidence: Any, before: Any, after: Any, audit: Any
) -> dict[str, str]:
    batch = api.call("GET", f"/v1/batches/{task['batch_id']}")
    policy, shift = model["manifest"]["policy"], evidence["shift"]

    def f1(scores: Any) -> str:
        return f"{100 * scores['micro_f1']:.2f} %"

    return {
        "records erased": f"{batch['records']} of {model['report']['rows']}",
        "shift": f"KL(R‖D) = {shift['kl_retained_original']:.4f}",
        "distance": f"certified {evidence['distance']:.2e} ≤ target {policy['target_distance']:g}",
        "noise": f"σ = {model['sigma']:.3e}",
        "guarantee": f"ε = {policy['epsilon']:g}, δ = {policy['delta']:g}, proved",
        "F1 original": f1(before["current"]),
        "F1 unlearned": f1(after["current"]),
        "F1 retrained": f1(after["retrained"]),
        "seconds": f"unlearn {after['seconds']['current']:.3f}, retrain {after['seconds']['retrained']:.3f}",
        "replay audit": f"{audit['verdict']}, p = {audit['p_value']:.2f}",
        "certificate": task["certificate_id"],
    }


def _show(summary: dict[str, str], evidence: Any, said: list[str]) -> None:
    table = Table(show_header=False, title="Erased, and proved")
    for name, value in summary.items():
        table.add_row(name, value)
    console.print(table)
    REPORT.mkdir(exist_ok=True)
    page = REPORT / "index.html"
    demo_report.write(page, summary=summary, evidence=evidence, target=TARGET, verification=said)
    console.print(f"A report with plots: {page}")


if __name__ == "__main__":
    sys.exit(main())

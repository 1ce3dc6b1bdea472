"""`make demo`: one erasure end to end on embedded defaults, through the public API, as a user would.

Trains a classifier on scikit-learn's handwritten digits, whose writers hold several rows each, erases a
biased set of writers, verifies the certificate of the published model offline, and audits it by replay.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any
from uuid import UUID

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from safetensors.torch import load_file

from bench import demo_report
from bench.demo_data import Digits, Rows, digits
from bench.demo_service import DemoFailed, console, service
from certificate.cli import run_verify
from client import Lethe, LetheError
from client.answers import Model, Task
from client.report_answers import AuditResult, EvaluationResult, Scores
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
WAIT_SECONDS = 180.0


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="lethe-demo-") as folder:
        try:
            with service(Path(folder)) as lethe:
                _run(lethe, Path(folder), digits())
        except (DemoFailed, LetheError) as problem:
            console.print(f"[red]The demonstration failed:[/] {problem}")
            return 1
    return 0


def _run(lethe: Lethe, folder: Path, data: Digits) -> None:
    console.print(f"Registering a classifier of {len(data.train.labels)} digits, trained by the service …")
    lethe.models.create("digits", MANIFEST)
    lethe.models.upload_part("digits", "part0", data.train.parquet())
    lethe.models.upload_holdout("digits", "part0", data.holdout.parquet())
    lethe.models.validate("digits")
    model = lethe.models.wait_ready("digits", timeout=WAIT_SECONDS)
    before = _evaluate(lethe)
    original = lethe.versions.download("digits", folder / "original.safetensors")

    task = _erase(lethe, data.erase)
    evidence, said = _verify(lethe, folder, task)
    console.print("Auditing by replay, and scoring beside retraining …")
    audit = _audit(lethe, task)
    after = _evaluate(lethe)
    summary = _summary(lethe, model, task, evidence, before, after, audit)
    summary["distance"] += f", true {_true_distance(data, original):.2e} (the same solve replayed here)"
    _show(summary, evidence, said)


def _evaluate(lethe: Lethe) -> EvaluationResult:
    asked = lethe.evaluations.start("digits")
    done = lethe.evaluations.wait("digits", asked.id, timeout=WAIT_SECONDS)
    if done.result is None:
        raise DemoFailed(f"the evaluation failed: {done.error}")
    return done.result


def _audit(lethe: Lethe, task: Task) -> AuditResult:
    assert task.certificate_id is not None
    asked = lethe.audits.start(task.certificate_id)
    done = lethe.audits.wait(task.certificate_id, asked.id, timeout=WAIT_SECONDS)
    if done.result is None or not done.result.consistent:
        raise DemoFailed(f"the replay audit says: {done.result.summary if done.result else done.error}")
    return done.result


def _erase(lethe: Lethe, writers: list[str]) -> Task:
    """Post the requests, follow the batch live, and give back the task of the first."""
    console.print(f"{len(writers)} writers ask to be erased, in {REQUESTS} requests …")
    asked = [lethe.erasures.create(writers[i::REQUESTS], reference=f"demo-{i}") for i in range(REQUESTS)]
    lethe.models.flush("digits")
    for standing in lethe.erasures.follow(asked[0].id, timeout=WAIT_SECONDS):
        if standing.batches:
            _follow(lethe, standing.batches[0].id)
            break
    for erasure in reversed(asked):
        done = lethe.erasures.wait(erasure.id, timeout=WAIT_SECONDS)
        if done.state != "completed":
            raise DemoFailed(f"the erasure is {done.state}")
    return done.tasks[0]


def _follow(lethe: Lethe, batch_id: UUID) -> None:
    columns = (TextColumn("{task.description:<34}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("waiting for a worker", total=len(STEPS))
        for event in lethe.batches.events(batch_id):
            data = event.data
            if event.kind == "step" and data["step"] in STEPS:
                progress.update(bar, completed=STEPS.index(data["step"]), description=data["step"])
            elif event.kind == "progress":
                gradient = f"solve: ‖g‖ = {data['gradient_norm']:.1e}, Δ ≈ {data['distance']:.1e}"
                progress.update(bar, description=gradient)
        progress.update(bar, completed=len(STEPS), description="completed")


def _verify(lethe: Lethe, folder: Path, task: Task) -> tuple[Any, list[str]]:
    assert task.certificate_id is not None
    lethe.versions.download("digits", folder / "model.safetensors")
    evidence = lethe.certificates.evidence(task.certificate_id)
    (folder / "pack.json").write_bytes(lethe.certificates.pack(task.certificate_id).to_bytes())
    (folder / "evidence.json").write_bytes(evidence)
    (folder / "keys.json").write_bytes(lethe.log.keys().to_bytes())
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
    return json.loads(evidence), said


def _true_distance(data: Digits, original: Path) -> float:
    """‖w̃ - ŵ_R‖: the published weights are noised, so the solve is run again here, and solved to the end."""
    kept = _objective(data.train.without(set(data.erase)))
    unlearned = minimise(kept, kept.flatten(load_file(original)), target=TARGET)
    retrained = train(kept, target=TARGET / 1e4)
    return float((unlearned.w - retrained.w).norm())


def _objective(rows: Rows) -> Softmax:
    return Softmax(ArrayRows(rows.pixels, rows.labels), 10, LAMBDA)


def _summary(
    lethe: Lethe,
    model: Model,
    task: Task,
    evidence: Any,
    before: EvaluationResult,
    after: EvaluationResult,
    audit: AuditResult,
) -> dict[str, str]:
    assert task.batch_id is not None
    assert model.report is not None
    policy, shift = model.manifest.policy, evidence["shift"]

    def f1(scores: Scores) -> str:
        return f"{100 * (scores.micro_f1 or 0):.2f} %"

    return {
        "records erased": f"{lethe.batches.get(task.batch_id).records} of {model.report['rows']}",
        "shift": f"KL(R‖D) = {shift['kl_retained_original']:.4f}",
        "distance": f"certified {evidence['distance']:.2e} ≤ target {policy.target_distance:g}",
        "noise": f"σ = {model.sigma:.3e}",
        "guarantee": f"ε = {policy.epsilon:g}, δ = {policy.delta:g}, proved",
        "F1 original": f1(before.current),
        "F1 unlearned": f1(after.current),
        "F1 retrained": f1(after.retrained),
        "seconds": f"unlearn {after.seconds.current:.3f}, retrain {after.seconds.retrained:.3f}",
        "replay audit": f"{audit.verdict}, p = {audit.p_value:.2f}",
        "certificate": str(task.certificate_id),
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

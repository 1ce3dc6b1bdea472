"""`python -m bench representations`: certified heads on public representations, through the public API.

For every problem a service is started, the model is registered from raw rows, a biased set of people is
erased, and the released model is compared with retraining. Each problem runs in a process of its own, so that
its peak memory is known. `python -m bench.representation_service NAME` measures one problem.
"""

import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from bench.demo_service import DemoFailed, service
from bench.measurement import RESULTS, machine
from bench.representation_problems import DELTA, EPSILON, PROBLEMS, Problem
from bench.representations import (
    Dataset,
    compare_with_sklearn,
    encode_rows,
    graph_file,
    tokenizer_file,
    write_dataset,
)
from lethe import Lethe
from lethe.certificate.envelope import parse
from lethe.certificate.statement import parse_current
from lethe.client.responses import EvaluationResult

SUBJECTS_PER_REQUEST = 1000
WAIT_SECONDS = 5400.0
RESULT = RESULTS / "representations.json"


def manifest_of(problem: Problem) -> dict[str, Any]:
    """Return the manifest that the problem is registered with."""
    return {
        "family": problem.family,
        "width": problem.width,
        "lambda": problem.lam,
        **({} if problem.classes is None else {"classes": problem.classes}),
        "representation": problem.representation.model_dump(mode="json"),
        "origins": {
            "features": "the outputs of the representation",
            "constants": "chosen on held-out rows of other people",
        },
        "policy": {
            "epsilon": EPSILON,
            "delta": DELTA,
            "target_distance": problem.target,
            "batch_subjects": 1_000_000,
            "min_batch_subjects": 1,
        },
    }


def measure(name: str) -> dict[str, Any]:
    """Register, erase and compare one problem through the service, and return its figures."""
    problem = PROBLEMS[name]
    with tempfile.TemporaryDirectory(prefix="lethe-representations-") as temporary:
        folder = Path(temporary)
        dataset = write_dataset(problem, folder / "rows")
        with service(folder, advice_seconds="0") as lethe:
            figures = _erase_and_compare(lethe, problem, dataset)
            lethe.versions.download(name, folder / "released.safetensors")
        # The service has ended, so this is the largest of its processes.
        figures["peak_memory_bytes"] = 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        if problem.family == "logistic":
            figures["auc"] = _auc(problem, dataset, folder / "released.safetensors")
        figures["beside"] = compare_with_sklearn(problem, dataset)
    return figures


def _erase_and_compare(lethe: Lethe, problem: Problem, dataset: Dataset) -> dict[str, Any]:
    name = problem.name
    report, sigma = _register(lethe, problem, dataset)
    _say(name, f"registered, features in {report['representation']['features_seconds']:.0f} s")
    before = _evaluate(lethe, name)
    certificate_id = _erase(lethe, name, dataset.erase)
    evidence = json.loads(lethe.certificates.evidence(certificate_id))
    stated = parse_current(parse(lethe.certificates.get(certificate_id)).payload).predicate
    after = _evaluate(lethe, name)
    assert after.delta_f1 is not None
    assert after.passes is not None
    _say(name, f"F1 {_f1(before.current):.2f} before, {_f1(after.current):.2f} released")
    return {
        "title": problem.title,
        "f1_before": _f1(before.current),
        "f1_retrained": _f1(after.retrained),
        "f1_released": _f1(after.current),
        "delta_f1": abs(after.delta_f1.points),
        "delta_f1_interval": [after.delta_f1.low, after.delta_f1.high],
        "assurance": stated.guarantee.assurance,
        "mechanism": stated.mechanism,
        "rows": dataset.rows,
        "holdout_rows": dataset.holdout_rows,
        "erased": dataset.erased_rows,
        "people": len(dataset.erase),
        "biased_by": problem.bias_text,
        "kl": dataset.kl,
        "unlearn_seconds": after.seconds.current,
        "retrain_seconds": after.seconds.retrained,
        "passes_unlearn": after.passes.current,
        "passes_retrain": after.passes.retrained,
        "features_seconds": report["representation"]["features_seconds"],
        "row_check": report["representation"]["row_check"],
        "width": problem.width,
        "lambda": problem.lam,
        "target_distance": problem.target,
        "certified_distance": evidence["distance"],
        "sigma": sigma,
    }


def _register(lethe: Lethe, problem: Problem, dataset: Dataset) -> tuple[dict[str, Any], float]:
    """Upload everything and wait until the model is ready. Return its report and σ."""
    name = problem.name
    lethe.models.create(name, manifest_of(problem))
    lethe.models.upload_representation(name, graph_file(problem))
    tokenizer = tokenizer_file(problem)
    if tokenizer is not None:
        lethe.models.upload_tokenizer(name, tokenizer)
    for index, path in enumerate(dataset.training):
        lethe.models.upload_part(name, f"part{index:03}", path)
    for index, path in enumerate(dataset.holdout):
        lethe.models.upload_holdout(name, f"holdout{index:03}", path)
    lethe.models.validate(name)
    model = lethe.models.wait_ready(name, timeout=WAIT_SECONDS)
    assert model.report is not None
    return model.report, model.sigma


def _erase(lethe: Lethe, name: str, people: list[str]) -> Any:
    """Request the erasure, wait for it, and return the id of its certificate."""
    erasures = [lethe.erasures.create(chunk) for chunk in _chunks(people, SUBJECTS_PER_REQUEST)]
    lethe.models.flush(name)
    for erasure in erasures:
        done = lethe.erasures.wait(erasure.id, timeout=WAIT_SECONDS)
        if done.state != "completed":
            raise DemoFailed(f"the erasure ended in the state {done.state}")
    return done.tasks[0].certificate_id


def _chunks(people: list[str], size: int) -> Iterator[list[str]]:
    return (people[start : start + size] for start in range(0, len(people), size))


def _evaluate(lethe: Lethe, name: str) -> EvaluationResult:
    evaluation = lethe.evaluations.start(name)
    evaluation = lethe.evaluations.wait(name, evaluation.id, timeout=WAIT_SECONDS)
    if evaluation.result is None:
        raise DemoFailed(f"the evaluation failed: {evaluation.error}")
    return evaluation.result


def _f1(scores: Any) -> float:
    return 100 * float(scores.micro_f1)


def _auc(problem: Problem, dataset: Dataset, weights: Path) -> float:
    """Return the area under the curve of the released model on the holdout."""
    from sklearn.metrics import roc_auc_score

    _, truth, features = encode_rows(problem, dataset.holdout)
    head = load_file(weights)
    return float(roc_auc_score(truth, features.astype(np.float64) @ head["weight"][0] + head["bias"][0]))


def _say(name: str, text: str) -> None:
    print(f"{name}: {text}", flush=True)


def run() -> None:
    """Measure every problem in a process of its own, and write the results."""
    results: dict[str, Any] = {"machine": machine(), "epsilon": EPSILON, "delta": DELTA}
    with tempfile.TemporaryDirectory() as folder:
        for name in PROBLEMS:
            target = Path(folder) / f"{name}.json"
            command = [sys.executable, "-m", "bench.representation_service", name, str(target)]
            subprocess.run(command, check=True)
            results[name] = json.loads(target.read_text())
            _say(name, "measured")
    RESULT.write_text(json.dumps(results, indent=1) + "\n")


def main(arguments: list[str]) -> int:
    """Measure one problem, and write its figures to a file or print them."""
    figures = json.dumps(measure(arguments[0]), indent=1)
    if len(arguments) > 1:
        Path(arguments[1]).write_text(figures)
    else:
        print(figures)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

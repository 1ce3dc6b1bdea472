"""Linearised networks: ReLU networks fine-tuned from a public anchor, certified as proved by rule B1.

MNIST with a 784-64-64-10 network, CIFAR-10 at 16x16 pixels with the last convolution and the head of a small
convolutional network, CIFAR-10 at 64x64 pixels with the last block of EfficientNet-Lite0, and CIFAR-10 with
the last block of a ResNet-18. The anchor is fitted on public rows that are never erased. A biased set is
erased from a version that was published with noise, and 0.1 % of the rows in a second experiment. Costs are
in full passes over the rows: a Jacobian-vector and a vector-Jacobian product together count as one.

BENCH_CASE=mnist measures that case alone, and BENCH_CASE=serving what a prediction costs. BENCH_STAGE=biased
or BENCH_STAGE=small measures one of the two experiments alone, and BENCH_SKETCH=no leaves out the curvature
sketch, which takes longer to prepare than everything else. All other figures are kept. Each experiment names
the commit and the load of the machine at which it was measured: seconds depend on that load, passes and F1 do
not.
"""

import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from app.core.settings import Settings
from bench import networks
from bench.datasets import Images, mnist
from bench.linearised_cases import (
    CASES,
    SEED,
    Case,
    Data,
    objective_of,
    objective_on,
    prepare,
    public_anchor,
    split,
)
from bench.measurement import RESULTS, machine, peak_memory, timed
from lethe.certificate.privacy import sigma_for
from lethe.integrations.networks import linearised
from lethe.manifest import Manifest
from worker.engine.linearised.objective import LinearisedObjective
from worker.engine.networks.objective import NetworkObjective
from worker.engine.sketch import CurvatureSketch, build_sketch
from worker.engine.trust_region import Outcome, Solution, SolverSettings, minimise
from worker.evaluation.biased_deletions import deletion_reaching
from worker.evaluation.utility import NetworkHoldout, classification, compare
from worker.sketches import sketch_rank

EPSILON, DELTA, KL = 1.0, 1e-5, 0.104
DRAWS = 5
PREDICTIONS, PREDICTED_ROWS = 20, 1000
SETTINGS = SolverSettings(max_steps=200, recycled_solves=True)
SMALL_SHARE = 0.001
SMALL = "small_erasure"
SKETCH_MEGABYTES = int(Settings.model_fields["sketch_megabytes"].default)
BIAS = {"mnist": "digits 0 and 7"}
OTHER_BIAS = "aeroplanes and horses"


@dataclass(frozen=True, slots=True)
class Training:
    """A case with its rows, its anchor and the model that was trained on all private rows."""

    case: Case
    data: Data
    anchor: Tensor
    trained: Solution
    sigma: float
    anchor_seconds: float
    features_seconds: float

    def publish(self) -> Tensor:
        """Return the trained weights with fresh noise. -> (d,)"""
        return networks.released(self.trained.w, self.sigma)


def run() -> None:
    """Measure every selected case, write results/linearised.json and print a summary."""
    report: dict[str, Any] = {"machine": machine(), "epsilon": EPSILON, "delta": DELTA}
    selected, stage = os.environ.get("BENCH_CASE"), os.environ.get("BENCH_STAGE")
    keep, began = bool(selected or stage), report["machine"]["commit"]
    written = report = (_earlier_figures() if keep else {}) | report

    def circumstances() -> dict[str, Any]:
        now = machine()
        return {"commit": began, "threads": now["threads"], "load_at_end": now["load_at_start"]}

    for name, (case, images) in CASES.items():
        if selected not in (None, "", name) or (stage == "small" and name not in report):
            continue
        peak, (training, figures) = peak_memory(
            lambda case=case, images=images: train_and_measure(case, images(), measured=stage != "small")  # type: ignore[misc]
        )
        if figures is not None:
            report[name] = figures | {"peak_memory_bytes": peak} | circumstances()
            written = write(report)
        if stage != "biased":
            report[name][SMALL] = small_erasure(training) | circumstances()
            written = write(report)
    if selected in (None, "", "mnist") and not stage:
        report["conditional"] = conditional_network() | circumstances()
        written = write(report)
    if selected in (None, "", "serving") and not stage:
        report["serving"] = [serving_cost(case) for case, _ in CASES.values()]
        written = write(report)
    print_report(written)


def _earlier_figures() -> dict[str, Any]:
    path = RESULTS / "linearised.json"
    earlier = json.loads(path.read_text()) if path.exists() else {}
    return {name: earlier[name] for name in (*CASES, "conditional", "serving") if name in earlier}


def write(report: dict[str, Any]) -> dict[str, Any]:
    """Write the report with its bars and return it.

    It is called after each stage, because the next one takes minutes.
    """
    written = report | {"bars": bars(report)}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "linearised.json").write_text(json.dumps(written, indent=1) + "\n")
    return written


def train(case: Case, images: Images) -> Training:
    """Fit the anchor on the public rows, compute what does not move once, and train on the private rows."""
    data = split(images, case)
    anchor_seconds, anchor = timed(lambda: public_anchor(case, data.public))
    features_seconds, data = timed(lambda: prepare(case, data, anchor))
    private = objective_of(case, data, anchor, None)
    trained = _fit(case, private, private.anchor)
    sigma = sigma_for(epsilon=EPSILON, delta=DELTA, distance=case.target)
    return Training(case, data, anchor, trained, sigma, anchor_seconds, features_seconds)


def train_and_measure(
    case: Case, images: Images, *, measured: bool
) -> tuple[Training, dict[str, Any] | None]:
    """Train a case, and measure the biased erasure if it is to be `measured`."""
    training = train(case, images)
    return training, measure(training) if measured else None


def measure(training: Training) -> dict[str, Any]:
    """Release, erase a biased set, unlearn it and compare with retraining."""
    case, data, anchor, sigma = training.case, training.data, training.anchor, training.sigma
    published = training.publish()
    deletion = deletion_reaching(data.labels, KL, seed=SEED)
    retained = objective_of(case, data, anchor, deletion.rows)
    unlearned, retrained = _fit(case, retained, published), _fit(case, retained, retained.anchor)
    holdout = NetworkHoldout(objective_on(case, data.prepared_test or data.test, anchor, data))
    draws = [
        (networks.released(unlearned.w, sigma), networks.released(retrained.w, sigma)) for _ in range(DRAWS)
    ]
    scores = [
        (100 * classification(holdout, one).micro_f1, 100 * classification(holdout, other).micro_f1)
        for one, other in draws
    ]
    released, again = np.mean(scores, axis=0)
    interval = compare(holdout, retrained=draws[0][1], unlearned=draws[0][0])
    return _describe(training, retained.dimension) | {
        "f1_anchor": 100 * classification(holdout, retained.anchor).micro_f1,
        "f1_before": 100 * classification(holdout, published).micro_f1,
        "f1_retrained": float(again),
        "f1_released": float(released),
        "delta_f1": float(again - released),
        "delta_f1_interval": [interval.low, interval.high],
        "assurance": _assurance(case, unlearned),
        "mechanism": "tr",
        "erased": len(deletion.rows),
        "people": len(deletion.rows),
        "biased_by": BIAS.get(case.name, OTHER_BIAS),
        "kl": deletion.drift.kl_retained_original,
        "unlearn_seconds": unlearned.seconds,
        "retrain_seconds": retrained.seconds,
        "passes_unlearn": unlearned.passes,
        "passes_retrain": retrained.passes,
        "certified_distance": unlearned.distance,
        "rounding_over_lambda": unlearned.rounding / case.lam,
        "preconditioner": _preconditioner(retained, published),
        "beside": None,
    }


def _fit(
    case: Case, objective: LinearisedObjective, start: Tensor, sketch: CurvatureSketch | None = None
) -> Solution:
    return minimise(objective, start, target=case.target, settings=SETTINGS, sketch=sketch)


def small_erasure(training: Training) -> dict[str, Any]:
    """Erase 0.1 % of the rows, drawn evenly, and count the passes of unlearning and retraining.

    The passes of unlearning depend on the noise of the published version, so several versions are tried, with
    a curvature sketch as an idle worker prepares it, and without one. The sketch is that of the first
    version. A service would prepare one for each, which fits it at least as well.
    """
    case, data, anchor = training.case, training.data, training.anchor
    count = max(1, round(SMALL_SHARE * len(data.labels)))
    erased = np.random.default_rng(SEED + 1).permutation(len(data.labels))[:count]
    retained = objective_of(case, data, anchor, erased)
    versions = [training.publish() for _ in range(case.draws)]
    sketched = case.sketched and os.environ.get("BENCH_SKETCH") != "no"
    preparation, sketch = _prepared_sketch(training, versions[0]) if sketched else (None, None)
    retrained = _fit(case, retained, retained.anchor)
    return {
        "erased": count,
        "passes_retrain": retrained.passes,
        "retrain_seconds": retrained.seconds,
        "without_sketch": _costs([_fit(case, retained, version) for version in versions], retrained),
        "with_sketch": _costs([_fit(case, retained, version, sketch) for version in versions], retrained)
        if sketch is not None
        else None,
        "preparation": preparation,
    }


def _costs(unlearned: list[Solution], retrained: Solution) -> dict[str, Any]:
    passes = [solution.passes for solution in unlearned]
    return {
        "draws": passes,
        "passes_unlearn": statistics.mean(passes),
        "ratio": statistics.mean(passes) / retrained.passes,
        "unlearn_seconds": statistics.mean(solution.seconds for solution in unlearned),
        "certified": all(solution.outcome is Outcome.CERTIFIED for solution in unlearned),
    }


def _prepared_sketch(
    training: Training, published: Tensor
) -> tuple[dict[str, Any] | None, CurvatureSketch | None]:
    """Prepare the sketch of a published version, of the size that the worker's default settings allow.

    Its products touch every row, so each counts as a pass. They are made before anyone asks for an erasure.
    """
    private = objective_of(training.case, training.data, training.anchor, None)
    numbers = private.rows.count * training.data.private.width
    rank = sketch_rank(numbers=numbers, dimension=private.dimension, megabytes=SKETCH_MEGABYTES)
    if rank is None:
        return None, None
    seconds, sketch = timed(lambda: build_sketch(private, published, rank=rank))
    return {"directions": rank, "passes": 2 * rank, "seconds": seconds}, sketch


def _preconditioner(objective: LinearisedObjective, start: Tensor) -> dict[str, Any]:
    """Solve one Newton system on a sample with and without the preconditioner, to the same residual."""
    from worker.engine.objective import Sampling
    from worker.engine.subproblem import Quadratic, steihaug

    here = objective.evaluate(start)
    operator = objective.hessian(start, Sampling(rows=min(2048, objective.rows.count), seed=SEED))
    inverse = operator.approximate_inverse(1)
    counts = {}
    for name, apply in (("with", inverse.apply if inverse else None), ("without", None)):
        quadratic = Quadratic(here.gradient, operator.product, apply)
        counts[name] = steihaug(quadratic, 1e9, tolerance=1e-2 * here.norm, limit=2000).products
    return counts | {"residual": 1e-2}


def _describe(training: Training, dimension: int) -> dict[str, Any]:
    case, data = training.case, training.data
    return {
        "title": case.title,
        "rows": data.private.count,
        "public_rows": data.public.count,
        "holdout_rows": data.test.count,
        "dimension": dimension,
        "layers": list(case.layers),
        "width": data.private.width,
        "lambda": case.lam,
        "target_distance": case.target,
        "sigma": training.sigma,
        "train_passes": training.trained.passes,
        "anchor_seconds": training.anchor_seconds,
        "features_seconds": training.features_seconds,
    }


def _assurance(case: Case, solution: Solution) -> str:
    """Return the assurance that a certificate of this solution states, or why there is none."""
    if solution.outcome is not Outcome.CERTIFIED:
        return str(solution.outcome)
    width = case.inputs
    document = {
        "family": case.family,
        "width": width,
        "classes": 10,
        "lambda": case.lam,
        "network": case.network | ({"layers": list(case.layers)} if case.layers else {}),
        "origins": {"features": "pixels", "constants": "public", "anchor": "public rows"},
        "policy": {"epsilon": EPSILON, "delta": DELTA, "target_distance": case.target},
    }
    return str(Manifest.model_validate(document).assurance)


def conditional_network() -> dict[str, Any]:
    """Train and release the network of the conditional tier on the same rows of MNIST."""
    case = networks.MNIST
    data = networks.split(mnist(), case)
    anchor = networks.fitted_anchor(case, data)
    objective = NetworkObjective(data.private, case.spec, case.lam, anchor)
    trained = minimise(
        objective, anchor, target=networks.TARGET, working_floor=case.lam / 4, settings=networks.SETTINGS
    )
    sigma = sigma_for(epsilon=EPSILON, delta=DELTA, distance=networks.TARGET)
    holdout = NetworkHoldout(NetworkObjective(data.test, case.spec, case.lam, anchor))
    released = networks.released(trained.w, sigma)
    return {
        "title": "MNIST, 784-32-32-10 GELU, conditional tier",
        "lambda": case.lam,
        "f1_before": 100 * classification(holdout, released).micro_f1,
        "passes": trained.passes,
        "seconds": trained.seconds,
    }


def serving_cost(case: Case) -> dict[str, Any]:
    """Compare the time of a prediction by the linearised network with one by the network itself."""
    module = case.build().float().eval()
    parameters = {name: part.detach() for name, part in module.named_parameters()}
    generator = torch.Generator().manual_seed(SEED)
    theta = {name: 0.01 * torch.randn(part.shape, generator=generator) for name, part in parameters.items()}
    served = linearised(module, module.state_dict(), theta)
    rows = torch.randn(PREDICTED_ROWS, case.inputs, generator=generator)
    with torch.no_grad():
        pairs = [
            (_processor_seconds(lambda: module(rows)), _processor_seconds(lambda: served(rows)))
            for _ in range(PREDICTIONS + 3)  # the first three warm up
        ]
    alone, whole = (statistics.median(times) for times in zip(*pairs[3:], strict=True))
    return {
        "title": case.title,
        "rows": PREDICTED_ROWS,
        "network_seconds": alone,
        "linearised_seconds": whole,
        "ratio": whole / alone,
    }


def _processor_seconds(call: Callable[[], object]) -> float:
    """Return the processor time of a call, which other load on the machine changes less than the clock."""
    started = time.process_time()
    call()
    return time.process_time() - started


def bars(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the targets of each case and whether they are met."""
    found: dict[str, dict[str, Any]] = {}

    def bar(name: str, measured: float, asked: float, met: bool) -> None:
        found[name] = {"measured": measured, "asked": asked, "met": met}

    for name in (name for name in CASES if name in report):
        case = report[name]
        title, small = case["title"], case.get(SMALL)
        bar(f"{title}: |ΔF1|", abs(case["delta_f1"]), 0.1, abs(case["delta_f1"]) <= 0.1)
        certified = case["certified_distance"]
        proved = case["assurance"] == "proved"
        bar(f"{title}: proved, Δ", certified, case["target_distance"], proved)
        if small is not None:
            for kind, costs in (("with", small["with_sketch"]), ("without", small["without_sketch"])):
                if costs is not None:
                    name_of_bar = f"{title}: passes to erase 0.1 %, share {kind} a sketch"
                    bar(name_of_bar, costs["ratio"], 0.5, costs["ratio"] <= 0.5)
        if name == "mnist":
            bar(f"{title}: F1 released", case["f1_before"], 96.0, case["f1_before"] >= 96.0)
            other = report.get("conditional", {}).get("f1_before")
            if other is not None:
                bar(
                    f"{title}: F1 above the conditional tier",
                    case["f1_before"],
                    other,
                    case["f1_before"] > other,
                )
        else:
            gain = case["f1_before"] - case["f1_anchor"]
            bar(f"{title}: F1 above the anchor", gain, 2.0, gain >= 2.0)
    return found


def print_report(report: dict[str, Any]) -> None:
    """Print the targets as a table."""
    table = Table("", "measured", "target", "", title="Linearised networks")
    for name, bar in report["bars"].items():
        table.add_row(
            name, f"{bar['measured']:.3g}", f"{bar['asked']:.3g}", "met" if bar["met"] else "missed"
        )
    Console().print(table)


if __name__ == "__main__":
    run()

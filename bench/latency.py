"""`python -m bench latency`: how long an erasure takes in the service beyond the solve, and jobs per minute.

Three measurements on embedded defaults, the first two through the public API:

- MNIST with softmax regression, 60,000 rows: the time from sealing a batch of 30 people to its completion, as
  the service records it, the seconds of the solve, and the time until a waiting client knows.
- Twenty models of 1,000 rows with one erasure each, all flushed at once: jobs per minute of one worker.
- The memory of the idle worker and of its fork server, after the last job.
"""

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from bench.datasets import mnist
from bench.demo_service import service
from bench.measurement import RESULTS, machine, median
from lethe import Lethe
from worker.fork_server import SERVE
from worker.main import ATTEMPT_MODULE

ROUNDS, PEOPLE, SMALL_MODELS, SMALL_ROWS = 5, 30, 20, 1000
WAIT_SECONDS = 600.0
RESULT = RESULTS / "latency.json"
_MANIFEST = {
    "family": "softmax",
    "classes": 10,
    "origins": {"features": "pixels divided by 255", "constants": "chosen before the data was seen"},
    "policy": {"target_distance": 1e-2, "batch_subjects": 1_000_000, "min_batch_subjects": 1},
}


def run() -> None:
    """Measure both, print the figures and write them to the results."""
    with tempfile.TemporaryDirectory(prefix="lethe-latency-") as temporary:
        folder = Path(temporary)
        with service(folder, advice_seconds="0") as lethe:
            erasure, jobs = _measure_erasures(lethe, folder), _measure_jobs(lethe, folder)
            figures = {"erasure": erasure, "jobs": jobs, "idle_memory": _measure_idle_memory()}
    report = {"machine": machine(), **figures, "bars": _bars(figures)}
    RESULT.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(figures, indent=1))


def _bars(figures: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the targets, from the same run."""
    beyond, rate = figures["erasure"]["beyond_solve"], figures["jobs"]["per_minute"]
    return {
        "seconds from sealed to completed, without the solve": {
            "measured": beyond,
            "asked": "≤ 1",
            "met": beyond <= 1.0,
        },
        "small jobs per minute": {"measured": rate, "asked": "≥ 60", "met": rate >= 60.0},
    }


def _measure_erasures(lethe: Lethe, folder: Path) -> dict[str, Any]:
    """Erase people from MNIST several times, and return the medians."""
    images = mnist()
    features = images.train_images.reshape(len(images.train_labels), -1).astype(np.float32) / 255
    _register(lethe, "mnist", folder, features, images.train_labels.astype(np.int64), lam=1e-2)
    rounds = [_erase(lethe, "mnist", range(PEOPLE * turn, PEOPLE * (turn + 1))) for turn in range(ROUNDS)]
    return {
        "rows": len(features),
        "people": PEOPLE,
        "rounds": rounds,
        **{name: median([row[name] for row in rounds]) for name in rounds[0]},
    }


def _erase(lethe: Lethe, name: str, people: range) -> dict[str, float]:
    began = time.monotonic()
    erasure = lethe.erasures.create([f"{name}-{number}" for number in people], models=[name])
    lethe.models.flush(name)
    done = lethe.erasures.wait(erasure.id, timeout=WAIT_SECONDS)
    waited = time.monotonic() - began
    assert done.state == "completed", done.state
    task = done.tasks[0]
    assert task.batch_id is not None
    assert task.certificate_id is not None
    batch = lethe.batches.get(task.batch_id)
    assert batch.completed_at is not None
    evidence = json.loads(lethe.certificates.evidence(task.certificate_id))
    service_seconds = (batch.completed_at - batch.sealed_at).total_seconds()
    return {
        "sealed_to_completed": service_seconds,
        "solve": evidence["seconds_total"],
        "beyond_solve": service_seconds - evidence["seconds_total"],
        "client_waited": waited,
    }


def _measure_jobs(lethe: Lethe, folder: Path) -> dict[str, Any]:
    """Give one worker a job for each of many small models, and return how many it does per minute."""
    generator = np.random.default_rng(0)
    names = [f"small-{index}" for index in range(SMALL_MODELS)]
    for name in names:
        labels = generator.integers(0, 10, SMALL_ROWS)
        features = generator.normal(size=(SMALL_ROWS, 64)).astype(np.float32) / 8
        features[np.arange(SMALL_ROWS), labels] += 1
        _register(lethe, name, folder, features, labels, lam=1e-2)
    erasures = [lethe.erasures.create([f"{name}-1"], models=[name]) for name in names]
    for name in names:
        lethe.models.flush(name)
    batches = []
    for erasure in erasures:
        done = lethe.erasures.wait(erasure.id, timeout=WAIT_SECONDS)
        assert done.tasks[0].batch_id is not None
        batches.append(lethe.batches.get(done.tasks[0].batch_id))
    first = min(batch.sealed_at for batch in batches)
    last = max(batch.completed_at for batch in batches if batch.completed_at is not None)
    seconds = (last - first).total_seconds()
    return {
        "jobs": len(batches),
        "rows": SMALL_ROWS,
        "seconds": seconds,
        "per_minute": 60 * len(batches) / seconds,
    }


def _measure_idle_memory() -> dict[str, int]:
    """Return the resident memory of the worker and of its fork server, in bytes, while no job runs.

    A child of the fork server, which may be preparing a sketch, has the same command line and is left out.
    """
    running = psutil.Process().children(recursive=True)
    memory = {
        name: [process for process in running if words <= set(process.cmdline())]
        for name, words in (("worker", {"worker"}), ("fork_server", {ATTEMPT_MODULE, SERVE}))
    }
    return {
        name: sum(
            process.memory_info().rss
            for process in found
            if process.ppid() not in {other.pid for other in found}
        )
        for name, found in memory.items()
    }


def _register(
    lethe: Lethe,
    name: str,
    folder: Path,
    features: NDArray[np.floating[Any]],
    labels: NDArray[np.int64],
    *,
    lam: float,
) -> None:
    width, numbers = features.shape[1], features.astype(np.float32)
    table = pa.table(
        {
            "subject_id": [f"{name}-{row}" for row in range(len(labels))],
            "label": labels,
            "features": pa.FixedSizeListArray.from_arrays(pa.array(numbers.ravel()), width),
        }
    )
    pq.write_table(table, folder / "part.parquet")
    lethe.models.create(name, _MANIFEST | {"width": width, "lambda": lam})
    lethe.models.upload_part(name, "part0", folder / "part.parquet")
    lethe.models.validate(name)
    lethe.models.wait_ready(name, timeout=WAIT_SECONDS)

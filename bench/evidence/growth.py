"""How unlearning scales with rows, parameters and batch size, in time and memory."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.datasets import cifar10
from bench.engine import Data
from bench.evidence import features
from bench.evidence.clock import clocked
from bench.evidence.plan import plan
from bench.evidence.problems import Linear
from bench.measurement import peak_memory
from worker.evaluation.biased_deletions import biased_deletion

SEED, SHARE = 11, 10  # One row in ten is erased, except where the batch size varies.
SIDES = (8, 16, 32)
_COLOUR_ROWS = 10_000


def measure() -> dict[str, Any]:
    """Measure along each axis."""
    sizes = plan()
    loaded = features.load("MNIST", sizes.growth_rows[-1])
    by_rows = [_point(Linear("MNIST", rows=n, loaded=loaded), n // SHARE) for n in sizes.growth_rows]
    largest = Linear("MNIST", rows=sizes.growth_rows[-1], loaded=loaded)
    counts = [n for n in (1, 10, 100, 1000, 10_000) if n <= len(largest.labels) // 4]
    by_batch = [_point(largest, count) for count in counts]
    del loaded, largest
    rows = min(_COLOUR_ROWS, sizes.growth_rows[-1])
    by_parameters = [_point(_pooled(side, rows), rows // SHARE) for side in SIDES]
    return {"seed": SEED, "rows": by_rows, "batch": by_batch, "parameters": by_parameters}


def _point(problem: Linear, erased: int) -> dict[str, Any]:
    deletion = biased_deletion(problem.labels, erased, seed=SEED)
    objective = problem.objective(problem.kept(deletion.rows))
    memory, (clock, solution) = peak_memory(lambda: clocked(lambda: problem.solve(objective, problem.start)))
    return {
        "data": problem.name,
        "rows": len(problem.labels),
        "parameters": problem.dimension,
        "erased": erased,
        "outcome": solution.outcome.name,
        **clock.record(),
        "passes": solution.passes,
        "peak_megabytes_beyond_rows": memory and memory / 2**20,
        "rows_megabytes": 4 * objective.rows.count * objective.rows.width / 2**20,
    }


def _pooled(side: int, rows: int) -> Linear:
    """Return CIFAR-10 at `side` x `side` pixels: the same rows with another number of parameters."""
    raw = cifar10()
    train = Data(_averaged(raw.train_images[:rows], side), raw.train_labels[:rows].astype(np.int64))
    test = Data(_averaged(raw.test_images[:100], side), raw.test_labels[:100].astype(np.int64))
    return Linear("CIFAR-10 pixels", rows=rows, loaded=(train, test))


def _averaged(images: NDArray[np.uint8], side: int) -> NDArray[np.float32]:
    fold = 32 // side
    pixels = images.astype(np.float32).reshape(-1, 3, side, fold, side, fold).mean((3, 5)) / np.float32(255)
    flat = pixels.reshape(len(images), -1)
    whole = np.hstack([flat, np.ones((len(flat), 1), dtype=np.float32)])
    return (whole / np.float32(np.sqrt(whole.shape[1]))).astype(np.float32)

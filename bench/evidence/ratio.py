"""KL against the number of rows erased without regard to class: the paper's i.i.d. table."""

from typing import Any

from bench.datasets import SOURCES
from worker.evaluation.biased_deletions import biased_deletion

COUNTS = tuple(range(1000, 10_001, 1000))
SEEDS = (0, 1, 2)


def measure() -> dict[str, Any]:
    """Measure every dataset."""
    return {"seeds": list(SEEDS), "data": {name: _table(name) for name in SOURCES}}


def _table(name: str) -> dict[str, Any]:
    labels = SOURCES[name]().train_labels
    return {
        "rows": len(labels),
        "erased": [
            {
                "count": count,
                "kl_retained_original": [
                    biased_deletion(labels, count, weights={}, seed=seed).drift.kl_retained_original
                    for seed in SEEDS
                ],
            }
            for count in COUNTS
        ],
    }

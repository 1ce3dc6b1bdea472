"""The paper's tables and figures next to ours: every method on the same rows, in the same run.

`python -m bench evidence` runs every part, `python -m bench.evidence mnist lira` those named. Each part
writes results/evidence_<part>.json when it finishes, so an interrupted run keeps what is done.
"""

import importlib
import json
import os
from collections.abc import Sequence
from typing import Any

from bench.measurement import RESULTS, machine, timed

PARTS = {
    "mnist": "comparison:mnist",
    "mlp": "comparison:mlp",
    "ratio": "ratio:measure",
    "sweep_mnist": "sweep:sweep_mnist",
    "lifetime": "lifetime:measure",
    "lira": "lira:measure",
    "reconstruction": "reconstruction:measure",
    "growth": "growth:measure",
    "fashion": "comparison:fashion",
    "cifar": "comparison:cifar",
    "sweep_cifar": "sweep:sweep_cifar",
    "allcnn": "comparison:allcnn",
    "resnet": "comparison:resnet",
}


def run(names: Sequence[str] = ()) -> None:
    """Run the named parts, or all of them."""
    for name in names or PARTS:
        module, function = PARTS[name].split(":")
        measure = getattr(importlib.import_module(f"bench.evidence.{module}"), function)
        host = machine()
        seconds, figures = timed(measure)
        report: dict[str, Any] = {
            "part": name,
            "size": os.environ.get("BENCH") or "default",
            "machine": host,
            "load_at_end": os.getloadavg()[0],
            "seconds": seconds,
        }
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"evidence_{name}.json").write_text(json.dumps(report | figures, indent=1) + "\n")
        print(f"evidence: {name} took {seconds:.0f} s", flush=True)

"""One job on two ranks against one, with one thread each, and the bytes they exchange.

Softmax and an MLP on synthetic rows: one pass (value, gradient and its bound) and one exact Hessian product
over all rows. Both are measured in turn within one run, so that other load affects both.
"""

import json
import os
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from app.core.settings import Settings
from app.core.storage import Storage
from app.db.manifest import Manifest
from bench.measurement import RESULTS, full, machine, median, timed
from worker.data.families import FamilyObjective
from worker.distributed import launch
from worker.distributed.protocol import GroupConnection, join
from worker.distributed.rank0 import Team
from worker.engine.networks.architectures import Mlp, initial_point

Call = Callable[[], object]
CLASSES, WIDTH, HIDDEN = 10, 256, 64
ORIGINS = {"features": "made up", "constants": "made up"}
MANIFESTS: dict[str, dict[str, Any]] = {
    "softmax": {"family": "softmax", "lambda": 1e-3, "origins": ORIGINS},
    "mlp": {
        "family": "mlp",
        "network": {"hidden": [HIDDEN], "activation": "gelu"},
        "lambda": 0.1,
        "origins": ORIGINS | {"anchor": "made up"},
    },
}


def run() -> None:
    """Measure, print, and write results/ranks.json."""
    os.environ["OMP_NUM_THREADS"] = "1"  # for the other ranks too
    torch.set_num_threads(1)
    rows, repeats = (400_000, 7) if full() else (80_000, 3)
    report: dict[str, Any] = {"machine": machine(), "rows": rows, "width": WIDTH, "repeats": repeats}
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(data_dir=Path(folder), nproc=2, device="cpu")
        os.environ["LETHE_DATA_DIR"], os.environ["LETHE_DEVICE"] = folder, "cpu"
        _write(Storage(settings.storage), rows)
        with (
            closing(launch.Followers()) as followers,
            launch.open_rendezvous(settings, followers) as place,
        ):
            assert place is not None
            connections: list[GroupConnection] = []

            def connect() -> GroupConnection:
                assert place is not None
                connections.append(join(place, torch.device("cpu"), settings.rank_timeout_seconds))
                return connections[0]

            two = Team(torch.device("cpu"), 2, connect)
            alone = Team(torch.device("cpu"))
            for name in MANIFESTS:
                report[name] = _compare(name, settings, alone, two, connections, repeats)
                print(name, json.dumps(report[name]))
            report["exchange"] = _exchange(connections[0], repeats)
            two.close()
    (RESULTS / "ranks.json").write_text(json.dumps(report, indent=2) + "\n")


def _write(storage: Storage, rows: int) -> None:
    generator = np.random.default_rng(5)
    labels = generator.integers(0, CLASSES, rows)
    features = generator.normal(size=(rows, WIDTH)).astype(np.float32) / 16
    features[np.arange(rows), labels] += 1
    table = pa.table(
        {
            "subject_id": pa.array([str(i) for i in range(rows)]),
            "label": pa.array(labels),
            "features": pa.FixedSizeListArray.from_arrays(pa.array(features.ravel()), WIDTH),
        }
    )
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=10_000)
    storage.write("rows.parquet", [sink.getvalue().to_pybytes()])


def _compare(
    name: str, settings: Settings, alone: Team, two: Team, connections: list[GroupConnection], repeats: int
) -> dict[str, Any]:
    manifest = Manifest.model_validate(MANIFESTS[name] | {"width": WIDTH, "classes": CLASSES})
    anchor = initial_point(Mlp((WIDTH, HIDDEN, CLASSES), "gelu"), seed=1) if name == "mlp" else None
    storage, scratch = Storage(settings.storage), settings.data_dir / "bench"
    one, both = (
        team.objective(storage, manifest, ("rows.parquet",), anchor, scratch / "rows")
        for team in (alone, two)
    )
    figures: dict[str, Any] = {"parameters": one.dimension}
    for work, prepare in {"pass": _pass, "product": _product}.items():
        figures[work] = _times(prepare(one), prepare(both), connections[0], repeats)
    return figures


def _times(one: Call, both: Call, connection: GroupConnection, repeats: int) -> dict[str, Any]:
    one()  # loads the rows into memory
    both()
    connection.sent.clear()
    both()
    exchanged = dict(connection.sent)
    pairs = [(timed(one)[0], timed(both)[0]) for _ in range(repeats)]
    return {
        "seconds_one": median([first for first, _ in pairs]),
        "seconds_two": median([second for _, second in pairs]),
        "speed_up": median([first / second for first, second in pairs]),
        "bytes": exchanged,
    }


def _pass(objective: FamilyObjective) -> Call:
    return lambda: objective.evaluate(objective.anchor)


def _product(objective: FamilyObjective) -> Call:
    """Return a streamed product. Neither share of the rows is small enough to be kept in memory."""
    operator, v = objective.hessian(objective.anchor), torch.ones(objective.dimension, dtype=torch.float64)
    return lambda: operator.product(v)


def _exchange(connection: GroupConnection, repeats: int) -> dict[str, Any]:
    """Measure an order without work, and the throughput of a long vector."""
    empty = median([timed(lambda: connection.order("forget"))[0] for _ in range(20 * repeats)])
    numbers = 4_000_000
    vector = torch.ones(numbers, dtype=torch.float64)
    seconds = median([timed(lambda: connection.order("forget", vector))[0] for _ in range(repeats)])
    return {"order_seconds": empty, "bytes_per_second": 8 * numbers / seconds}


if __name__ == "__main__":
    run()

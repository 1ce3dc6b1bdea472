"""The fork server of attempts with small jobs in place of attempts, for the tests of warm processes.

    python -m tests.unit.worker.warm_jobs --serve COMMANDS REPLIES

It imports what `worker.attempt` imports. A job writes what it finds in its process to a file, as JSON, and
then leaves behind whatever it can.
"""

import json
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from worker import attempt, devices, fork_server

SIZE = 300  # of a matrix that is large enough for several threads


def findings() -> dict[str, Any]:
    """Describe everything in this process that an earlier job could have changed."""
    umask = os.umask(0)
    os.umask(umask)
    return {
        "environment": dict(os.environ),
        "folder": str(Path.cwd()),
        "umask": umask,
        "descriptors": sorted(path.name for path in Path("/proc/self/fd").iterdir()),
        "signals": [str(signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGINT)],
        "modules": sorted(name for name in sys.modules if name.startswith("left_behind")),
        "globals": getattr(devices, "left_behind", None),
        "torch": [torch.initial_seed(), torch.get_num_threads(), str(torch.get_default_dtype())],
        "torch_state": torch.random.get_rng_state().sum().item(),
        "numpy_state": int(np.random.get_state()[1].sum()),  # type: ignore[index]
        "cuda": [torch.cuda.is_initialized(), torch.cuda._is_in_bad_fork()],
    }


def leave_everything_behind(folder: Path) -> None:
    """Change everything that `findings` looks at."""
    os.environ["LEFT_BEHIND"] = "yes"
    os.chdir(folder)
    os.umask(0o123)
    os.open(folder, os.O_RDONLY)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.modules["left_behind"] = sys.modules[__name__]
    vars(devices)["left_behind"] = True
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    torch.set_num_threads(3)
    torch.set_default_dtype(torch.float64)


def compute() -> list[float]:
    """Compute with several threads of torch, NumPy and PyArrow, and return sums that must always agree."""
    import pyarrow as pa
    import pyarrow.compute as pc

    torch.set_num_threads(2)
    matrix = torch.arange(SIZE * SIZE, dtype=torch.float64).reshape(SIZE, SIZE) / SIZE**2
    table = pa.table({str(column): pa.array(matrix[column].numpy()) for column in range(8)})
    return [
        float((matrix @ matrix).sum()),
        float((matrix.numpy() @ matrix.numpy()).sum()),
        float(matrix.repeat(20, 1).exp().sum()),
        pc.sum(table.sort_by("0").column("1")).as_py(),
    ]


def run(job: str, target: str) -> None:
    """Do what the job's name says and write the result to a file."""
    result: Any = findings()
    if job == "leave":
        leave_everything_behind(Path(target).parent)
    elif job == "compute":
        result = {"sums": compute(), "threads": len(list(Path("/proc/self/task").iterdir()))}
    elif job == "random":
        result = {"random": random.random(), "bytes": os.urandom(8).hex()}
    Path(target).write_text(json.dumps(result))


if __name__ == "__main__":
    vars(attempt)["main"] = lambda *_: None
    serve = fork_server.serve

    def serve_small_jobs(_: Any, commands: int, replies: int, **__: Any) -> None:
        """Serve the small jobs, once `worker.attempt` has imported everything for its own."""
        serve(run, commands, replies, name=lambda job, _: f"test {job}")

    vars(fork_server)["serve"] = serve_small_jobs
    attempt.serve(int(sys.argv[2]), int(sys.argv[3]))

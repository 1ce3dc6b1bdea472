"""What every measurement needs: medians, peak memory, and where it was taken."""

import contextlib
import ctypes
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
RESULTS = Path(__file__).parent / "results"


def full() -> bool:
    """Whether the long version was asked for."""
    return os.environ.get("BENCH", "") == "full"


def timed(call: Callable[[], T]) -> tuple[float, T]:
    started = time.perf_counter()
    result = call()
    return time.perf_counter() - started, result


def median(values: list[float]) -> float:
    return statistics.median(values)


def peak_memory(call: Callable[[], T]) -> tuple[int | None, T]:
    """Peak resident bytes beyond those held at the start; None where the system does not tell."""
    status, refs = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # what earlier work freed shall not hide what this one takes
    try:
        refs.write_text("5")  # resets the high-water mark (Linux)
    except OSError:
        return None, call()
    before = _kilobytes(status, "VmRSS")
    result = call()
    return 1024 * max(0, _kilobytes(status, "VmHWM") - before), result


def _kilobytes(status: Path, field: str) -> int:
    lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return int(lines[field].split()[0])


def machine() -> dict[str, Any]:
    """Processor, versions and commit, so that a figure can be judged later."""
    import numpy
    import scipy
    import torch

    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load_at_start": os.getloadavg()[0],
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "scipy": scipy.__version__,
        "commit": _commit(),
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        if names:
            return names[0].split(":", 1)[1].strip()
    return platform.processor()


def _commit() -> str | None:
    here = Path(__file__).parent
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=here, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or None

"""Helpers shared by the benchmarks: timing, peak memory and a description of the machine."""

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
    """Return whether BENCH=full asks for the long versions."""
    return os.environ.get("BENCH", "") == "full"


def timed(call: Callable[[], T]) -> tuple[float, T]:
    """Call a function and return the seconds it took and its result."""
    started = time.perf_counter()
    result = call()
    return time.perf_counter() - started, result


def median(values: list[float]) -> float:
    """Return the median."""
    return statistics.median(values)


def peak_memory(call: Callable[[], T]) -> tuple[int | None, T]:
    """Call a function and return its peak memory beyond the start, and its result.

    The memory is in bytes, or None if the system does not report it.
    """
    status, refs = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # Memory that earlier work freed must not hide what this call takes.
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
    """Return processor, versions and commit, so that figures can be judged later."""
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

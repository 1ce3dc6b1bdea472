"""The processes that run uploaded graphs and tokenizers: under limits, and without any secret.

A hostile graph or tokenizer can exhaust memory, run forever or crash its library, for all rows or for one
that its owner has hidden among many. It therefore runs in a process of its own, never in the attempt's.
"""

import math
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Final

from app.core import process
from worker.representation.limits import Limits

# What an interpreter and ONNX Runtime need. Everything else in the environment may be a secret.
_PASSED: Final = (
    "PATH",
    "PYTHONPATH",
    "PYTHONHOME",
    "VIRTUAL_ENV",
    "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "TMPDIR",
)
_FILE_BYTES: Final = 1 << 20
_THREAD_BYTES: Final = 16 << 20  # of address space: a stack, and what the allocator reserves


def start(command: tuple[str, ...], stdout: int | IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a Python program that is fed through a pipe. Call `limit_process` in it."""
    return process.spawn(
        [sys.executable, *command],
        env=_environment(os.environ),
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=subprocess.DEVNULL,  # error messages of libraries can quote rows
    )


def _environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the process, without any secret of the worker's."""
    passed = {name: inherited[name] for name in _PASSED if name in inherited}
    # Many arenas would reserve address space, which is limited, without using it.
    return {**passed, "MALLOC_ARENA_MAX": "2", "TOKENIZERS_PARALLELISM": "false"}


def limit_process(limits: Limits, device: str, *, seconds: float | None = None) -> None:
    """Limit the memory of this process, and its processor time if `seconds` are given.

    Core dumps are forbidden, because they would contain rows.
    """
    import resource  # not on every platform

    from worker.representation.session import default_threads, uses_cuda  # loads ONNX Runtime

    threads = default_threads()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_BYTES, _FILE_BYTES))
    if seconds is not None:
        most = math.ceil(seconds * threads)
        resource.setrlimit(resource.RLIMIT_CPU, (most, most + 1))
    status = Path("/proc/self/statm")
    if not status.exists():
        return
    address_space, _, _, _, _, data, _ = (
        int(pages) * resource.getpagesize() for pages in status.read_text().split()
    )
    allowed = limits.memory_bytes + threads * _THREAD_BYTES
    if uses_cuda(device):  # CUDA reserves far more addresses than it uses
        resource.setrlimit(resource.RLIMIT_DATA, (data + allowed, data + allowed))
    else:
        resource.setrlimit(resource.RLIMIT_AS, (address_space + allowed, address_space + allowed))


def too_much_memory(limits: Limits) -> str:
    """Return the reason for a graph that exceeds the limit on memory."""
    return f"the graph needs more than {limits.memory_bytes:,} bytes of memory"


def describe_crash(returncode: int, limits: Limits) -> str:
    """Say why a process ended without an answer."""
    if -returncode == signal.SIGKILL:
        return "the graph was stopped by the operating system, most likely because it used too much memory"
    end = process.describe_end(returncode)
    return (
        f"the graph made ONNX Runtime or the tokenizer crash ({end}), "
        f"possibly because it needs more than {limits.memory_bytes:,} bytes of memory"
    )

"""Devices: choose one for each rank, make it deterministic, and recognise when its memory runs out."""

import os
from dataclasses import dataclass
from typing import Literal

import torch

from worker.errors import DeviceError, OutOfMemory

DeviceSetting = Literal["auto", "cpu", "cuda", "mps"]
CUBLAS = "CUBLAS_WORKSPACE_CONFIG"
# What the allocators of CPU and MPS say in their messages. CUDA's raises a class of its own.
_OUT_OF_MEMORY_PHRASES = ("out of memory", "not enough memory", "can't allocate memory")


@dataclass(frozen=True)
class Machine:
    """The accelerators of a machine. Tests describe machines that they do not run on."""

    cuda_devices: int
    mps: bool

    @classmethod
    def detect(cls) -> "Machine":
        """Describe the machine that this process runs on."""
        cuda = torch.cuda.device_count() if torch.cuda.is_available() else 0
        return cls(cuda, torch.backends.mps.is_available())


def choose(setting: DeviceSetting, *, local_rank: int = 0, machine: Machine | None = None) -> torch.device:
    """Choose the device of one rank. CUDA devices are assigned to ranks in turn.

    MPS has no float64, and everything that is certified is float64. A worker configured for `mps` therefore
    computes on the CPU of that machine, and its certificates say `cpu`.
    """
    available = machine or Machine.detect()
    if setting == "cuda" and available.cuda_devices == 0:
        raise DeviceError(
            "LETHE_DEVICE is cuda, but this machine has no CUDA device: install a driver, or set it to auto"
        )
    if setting == "mps" and not available.mps:
        raise DeviceError("LETHE_DEVICE is mps, but this machine has no MPS device: set it to auto")
    if setting in ("auto", "cuda") and available.cuda_devices > 0:
        return torch.device("cuda", local_rank % available.cuda_devices)
    return torch.device("cpu")


def own_device_each(ranks: int, machine: Machine | None = None) -> bool:
    """Return whether each of `ranks` on this machine has a CUDA device to itself, as NCCL requires."""
    return 0 < ranks <= (machine or Machine.detect()).cuda_devices


def use_deterministic_algorithms() -> None:
    """Make torch deterministic. Call this before the first kernel: cuBLAS reads its settings only once."""
    os.environ.setdefault(CUBLAS, ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


def flags(device: torch.device) -> tuple[str, ...]:
    """Return the torch settings that another run must share to reproduce the same bits."""
    common = (
        f"torch.use_deterministic_algorithms={torch.are_deterministic_algorithms_enabled()}",
        f"torch.num_threads={torch.get_num_threads()}",
    )
    if device.type != "cuda":
        return common
    return (
        *common,
        f"{CUBLAS}={os.environ.get(CUBLAS, '')}",
        f"torch.backends.cudnn.benchmark={torch.backends.cudnn.benchmark}",
        f"torch.backends.cuda.matmul.allow_tf32={torch.backends.cuda.matmul.allow_tf32}",
    )


def describe(device: torch.device) -> str:
    """Return the device's name as a certificate states it."""
    if device.type == "cuda" and torch.cuda.is_available():
        return f"cuda ({torch.cuda.get_device_name(device)})"
    return device.type


def is_out_of_memory(problem: BaseException) -> bool:
    """Return whether an allocator raised this error because memory ran out."""
    if isinstance(problem, torch.OutOfMemoryError | MemoryError | OutOfMemory):
        return True
    return isinstance(problem, RuntimeError) and any(
        phrase in str(problem).lower() for phrase in _OUT_OF_MEMORY_PHRASES
    )


def release_cached_memory(device: torch.device) -> None:
    """Return the allocator's cached blocks to the device."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def share_cores(ranks: int) -> None:
    """Divide this machine's cores among its ranks, unless OMP_NUM_THREADS is set."""
    if ranks > 1 and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // ranks))

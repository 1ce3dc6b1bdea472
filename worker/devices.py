"""Where a rank computes, what makes it repeatable there, and what running out of memory looks like."""

import os
from dataclasses import dataclass
from typing import Literal

import torch

from worker.problems import DeviceError, OutOfMemory

Asked = Literal["auto", "cpu", "cuda", "mps"]
CUBLAS = "CUBLAS_WORKSPACE_CONFIG"
# How the allocators of CPU and MPS say it; CUDA's has a class of its own.
_SIGNS = ("out of memory", "not enough memory", "can't allocate memory")


@dataclass(frozen=True)
class Machine:
    """What there is to compute on; tests describe one that they do not have."""

    cuda_devices: int
    mps: bool

    @classmethod
    def here(cls) -> "Machine":
        cuda = torch.cuda.device_count() if torch.cuda.is_available() else 0
        return cls(cuda, torch.backends.mps.is_available())


def choose(asked: Asked, *, local_rank: int = 0, machine: Machine | None = None) -> torch.device:
    """The device of one rank: CUDA devices are dealt out in turn.

    MPS has no float64. Whatever is certified is float64, so a worker that is asked for `mps` computes on the
    CPU of that machine, and its certificates say `cpu`.
    """
    there = machine or Machine.here()
    if asked == "cuda" and there.cuda_devices == 0:
        raise DeviceError("cuda was asked for and there is none")
    if asked == "mps" and not there.mps:
        raise DeviceError("mps was asked for and there is none")
    if asked in ("auto", "cuda") and there.cuda_devices > 0:
        return torch.device("cuda", local_rank % there.cuda_devices)
    return torch.device("cpu")


def own_device_each(ranks: int, machine: Machine | None = None) -> bool:
    """Whether so many ranks of this machine have a CUDA device each, as NCCL wants."""
    return 0 < ranks <= (machine or Machine.here()).cuda_devices


def be_deterministic() -> None:
    """Before the first kernel runs: cuBLAS reads its workspace from the environment once."""
    os.environ.setdefault(CUBLAS, ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


def flags(device: torch.device) -> tuple[str, ...]:
    """The settings that a second run must share to get the same bits, as torch spells them."""
    told = (
        f"torch.use_deterministic_algorithms={torch.are_deterministic_algorithms_enabled()}",
        f"torch.num_threads={torch.get_num_threads()}",
    )
    if device.type != "cuda":
        return told
    return (
        *told,
        f"{CUBLAS}={os.environ.get(CUBLAS, '')}",
        f"torch.backends.cudnn.benchmark={torch.backends.cudnn.benchmark}",
        f"torch.backends.cuda.matmul.allow_tf32={torch.backends.cuda.matmul.allow_tf32}",
    )


def describe(device: torch.device) -> str:
    """As a certificate names it."""
    if device.type == "cuda" and torch.cuda.is_available():
        return f"cuda ({torch.cuda.get_device_name(device)})"
    return device.type


def is_out_of_memory(problem: BaseException) -> bool:
    if isinstance(problem, torch.OutOfMemoryError | MemoryError | OutOfMemory):
        return True
    return isinstance(problem, RuntimeError) and any(sign in str(problem).lower() for sign in _SIGNS)


def forget_cached(device: torch.device) -> None:
    """What the allocator keeps for later is wanted now."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def share_cores(ranks: int) -> None:
    """Ranks of one machine do not fight for its cores; who set OMP_NUM_THREADS has decided already."""
    if ranks > 1 and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // ranks))

"""Devices: which one a rank gets, which settings make it deterministic, and how memory errors look."""

import pytest
import torch

from worker import devices
from worker.devices import Machine
from worker.errors import DeviceError

BARE, APPLE, FOUR = Machine(0, mps=False), Machine(0, mps=True), Machine(4, mps=False)
CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("asked", "machine", "rank", "chosen"),
    [
        ("auto", BARE, 0, "cpu"),
        ("auto", FOUR, 0, "cuda:0"),
        ("cuda", FOUR, 5, "cuda:1"),
        ("cpu", FOUR, 0, "cpu"),
        ("auto", APPLE, 0, "cpu"),
        ("mps", APPLE, 0, "cpu"),  # it has no float64, and certificates need that
    ],
)
def test_a_rank_gets_its_device(
    asked: devices.DeviceSetting, machine: Machine, rank: int, chosen: str
) -> None:
    assert devices.choose(asked, local_rank=rank, machine=machine) == torch.device(chosen)


@pytest.mark.parametrize("asked", ["cuda", "mps"])
def test_a_missing_device_is_refused(asked: devices.DeviceSetting) -> None:
    with pytest.raises(DeviceError, match=asked):
        devices.choose(asked, machine=BARE)


def test_nccl_is_for_ranks_with_a_gpu_each() -> None:
    assert [devices.own_device_each(ranks, FOUR) for ranks in (1, 4, 5)] == [True, True, False]
    assert not devices.own_device_each(1, BARE)


def test_the_deterministic_settings_are_listed() -> None:
    before = torch.are_deterministic_algorithms_enabled()
    try:
        devices.use_deterministic_algorithms()
        assert "torch.use_deterministic_algorithms=True" in devices.flags(CPU)
        assert f"{devices.CUBLAS}=:4096:8" in devices.flags(torch.device("cuda"))
    finally:
        torch.use_deterministic_algorithms(before)


@pytest.mark.parametrize(
    "problem",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."),
        MemoryError(),
    ],
)
def test_out_of_memory_is_recognised_by_class_or_message(problem: Exception) -> None:
    assert devices.is_out_of_memory(problem)


def test_other_errors_are_not_taken_for_out_of_memory() -> None:
    assert not devices.is_out_of_memory(RuntimeError("shapes do not match"))
    assert not devices.is_out_of_memory(ValueError("out of memory"))

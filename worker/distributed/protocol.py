"""Between the ranks of one job: orders from rank 0 to all, sums from all to rank 0.

Every sum is made for an order, and every order carries the point it is about: ranks cannot drift apart, on
whatever hardware they are, and what a clock, a cancellation or a random draw decides is decided by rank 0
alone. Orders are JSON and plain numbers; nothing is pickled.
"""

import json
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FileStore, Store, TCPStore

from worker import devices
from worker.devices import is_out_of_memory
from worker.distributed import reaching
from worker.distributed.meeting import Meeting
from worker.engine.validation import EngineInputError
from worker.problems import OutOfMemory, RankFailed, RankLost

T = TypeVar("T")
_HEAD_BYTES = 512
_SHORT = 4096  # numbers: a sum this short goes to every rank, a longer one to rank 0 alone
IDLE = timedelta(days=7)  # between orders rank 0 may be long at something else; its end closes the connection
_FINE, _REFUSED, _NO_MEMORY, _FAILED = range(4)


@dataclass(frozen=True)
class Order:
    do: str
    args: dict[str, Any] = field(default_factory=dict)
    vector: Tensor | None = None  # (n,), float64, on the CPU
    text: str = ""


class _Told(Exception):
    """All ranks know of this problem of one of them, and leave the order together."""

    def __init__(self, problem: Exception) -> None:
        super().__init__(problem)
        self.problem = problem


class Wire(Protocol):
    rank: int
    size: int

    def order(self, do: str, vector: Tensor | None = None, text: str = "", **args: Any) -> None: ...

    def sum(self, tensor: Tensor) -> Tensor: ...

    def together(self, call: Callable[[], T]) -> T: ...

    def close(self) -> None: ...


class NoWire:
    """One rank, which needs none."""

    rank, size = 0, 1

    def order(self, do: str, vector: Tensor | None = None, text: str = "", **args: Any) -> None:
        pass

    def sum(self, tensor: Tensor) -> Tensor:
        return tensor

    def together(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except Exception as problem:
            raise_if_out_of_memory(problem)
            raise

    def close(self) -> None:
        pass


class GroupWire:
    """A process group of torch: gloo between CPUs, NCCL where every rank has a GPU of its own."""

    def __init__(self, store: Store, *, rank: int, size: int, nccl: bool, timeout: float) -> None:
        self.rank, self.size = rank, size
        self._nccl, self._timeout = nccl, timedelta(seconds=timeout)
        self._agreed = True
        self.sent: Counter[str] = Counter()  # bytes that leave or reach this rank, by what they are for
        store.set_timeout(self._timeout)
        try:
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if nccl else "gloo",
                store=store,
                rank=rank,
                world_size=size,
                timeout=self._timeout,
            )
            # Connected by now; from here on each wait has its own limit.
            dist.distributed_c10d._get_default_group().set_timeout(IDLE)
        except RuntimeError as problem:
            raise RankLost("the ranks did not find each other") from problem

    # -- orders -------------------------------------------------------------------------------------

    def order(self, do: str, vector: Tensor | None = None, text: str = "", **args: Any) -> None:
        payload = text.encode()
        floats = -1 if vector is None else vector.numel()
        head = json.dumps({"do": do, "floats": floats, "bytes": len(payload), "args": args}).encode()
        assert len(head) <= _HEAD_BYTES
        self._broadcast(_bytes(head.ljust(_HEAD_BYTES)), self._timeout)
        if payload:
            self._broadcast(_bytes(payload), self._timeout)
        if vector is not None:
            self._broadcast(vector.detach().to("cpu", torch.float64).contiguous(), self._timeout)

    def next(self) -> Order:
        """What rank 0 wants; waits for as long as it takes."""
        head = torch.zeros(_HEAD_BYTES, dtype=torch.uint8)
        self._broadcast(head, IDLE)
        said = json.loads(bytes(head.tolist()))
        payload = torch.zeros(said["bytes"], dtype=torch.uint8)
        if said["bytes"]:
            self._broadcast(payload, self._timeout)
        vector = None
        if said["floats"] >= 0:
            vector = torch.zeros(said["floats"], dtype=torch.float64)
            self._broadcast(vector, self._timeout)
        return Order(said["do"], said["args"], vector, bytes(payload.tolist()).decode())

    def _broadcast(self, tensor: Tensor, limit: timedelta) -> None:
        self.sent["orders"] += tensor.numel() * tensor.element_size()
        if tensor.numel():
            _wait(lambda: dist.broadcast(tensor, 0, async_op=True), limit)

    # -- sums ---------------------------------------------------------------------------------------

    def sum(self, tensor: Tensor) -> Tensor:
        """Over all ranks; the longer ones arrive at rank 0 alone, and leave the others with their own."""
        if not self._agreed:
            self._agree(_FINE)
        held = tensor.detach().clone() if self._nccl else tensor.detach().cpu().clone()
        held = held.contiguous()
        self.sent["sums"] += held.numel() * held.element_size()
        if held.numel() <= _SHORT:
            _wait(lambda: dist.all_reduce(held, async_op=True), self._timeout)
            return held.to(tensor.device)
        _wait(lambda: dist.reduce(held, 0, async_op=True), self._timeout)
        return held.to(tensor.device) if self.rank == 0 else tensor

    def together(self, call: Callable[[], T]) -> T:
        """One order, carried out by every rank: before the first sum, or at the end, all say how it went."""
        self._agreed = False
        try:
            result = call()
            if not self._agreed:
                self._agree(_FINE)
        except RankLost:
            raise
        except _Told as told:
            raise told.problem from None
        except Exception as problem:
            if self._agreed:  # the others are past this point and cannot be told
                raise RankLost("a rank failed in the middle of a sum") from problem
            self._agree(_code(problem))
            raise_if_out_of_memory(problem)
            raise
        return result

    def _agree(self, mine: int) -> None:
        self._agreed = True
        worst = torch.tensor([mine])
        _wait(lambda: dist.all_reduce(worst, dist.ReduceOp.MAX, async_op=True), self._timeout)
        if mine != _FINE or int(worst) == _FINE:
            return
        if int(worst) == _NO_MEMORY:
            raise _Told(OutOfMemory("another rank has no memory left"))
        if int(worst) == _REFUSED:
            raise _Told(EngineInputError("another rank refuses its rows"))
        raise _Told(RankFailed("another rank failed"))

    def close(self) -> None:
        dist.destroy_process_group()


def join(meeting: Meeting, device: torch.device, timeout: float) -> GroupWire:
    """Blocks until all ranks are there."""
    if meeting.file:
        os.environ.setdefault(reaching.INTERFACE, "lo")  # what is said stays on this machine
    else:
        reaching.stay_in_the_network_of(meeting.host, meeting.port)
    nccl = device.type == "cuda" and devices.own_device_each(meeting.local_ranks)
    return GroupWire(
        _store(meeting, timeout), rank=meeting.rank, size=meeting.size, nccl=nccl, timeout=timeout
    )


def _store(meeting: Meeting, timeout: float) -> Store:
    if meeting.file:
        return FileStore(meeting.file, meeting.size)
    if meeting.rank > 0:
        reaching.wait_for(meeting.host, meeting.port)  # for the next attempt, however long that takes to come
    patience = timedelta(seconds=timeout)
    try:
        return TCPStore(
            meeting.host, meeting.port, meeting.size, meeting.rank == 0, patience, wait_for_workers=False
        )
    except RuntimeError as problem:
        raise RankLost("the ranks did not find each other") from problem


def _wait(start: Callable[[], dist.Work | None], limit: timedelta) -> None:
    try:
        work = start()
        if work is not None:
            work.wait(limit)
    except RuntimeError as problem:
        raise RankLost("another rank is gone, or was silent for too long") from problem


def _bytes(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def _code(problem: Exception) -> int:
    if is_out_of_memory(problem):
        return _NO_MEMORY
    return _REFUSED if isinstance(problem, EngineInputError) else _FAILED


def raise_if_out_of_memory(problem: Exception) -> None:
    """In our own words: those of an allocator are many."""
    if is_out_of_memory(problem):
        raise OutOfMemory("memory does not hold a chunk of rows with its derivatives") from problem

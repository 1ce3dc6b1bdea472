"""The protocol between the ranks of one job: orders go from rank 0 to all, sums from all to rank 0.

Every sum belongs to an order, and every order carries the point it is about. Ranks therefore cannot drift
apart, whatever their hardware. Everything that depends on a clock, a cancellation or a random draw is decided
by rank 0 alone. Orders are JSON and plain numbers; nothing is pickled.
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
from worker.distributed import rendezvous
from worker.distributed.rendezvous import Rendezvous
from worker.engine.validation import EngineInputError
from worker.errors import OutOfMemory, RankFailed, RankLost, RankUnavailable, cause_of

T = TypeVar("T")
_HEAD_BYTES = 512
_SHORT = 4096  # a sum of up to this many numbers reaches every rank, a longer one rank 0 alone
IDLE = timedelta(days=7)  # rank 0 may be busy for long between orders; its end closes the connection
_SUCCESS, _REFUSED, _NO_MEMORY, _FAILED, _UNAVAILABLE = range(5)


@dataclass(frozen=True)
class Order:
    """An instruction from rank 0 to all ranks, with the vector it applies to."""

    do: str
    args: dict[str, Any] = field(default_factory=dict)
    vector: Tensor | None = None  # (n,), float64, on the CPU
    text: str = ""


class _SharedFailure(Exception):
    """A failure on one rank that all ranks know of. They abandon the order together."""

    def __init__(self, problem: Exception) -> None:
        super().__init__(problem)
        self.problem = problem


class Connection(Protocol):
    """A rank's connection to the others."""

    rank: int
    size: int

    def order(self, do: str, vector: Tensor | None = None, text: str = "", **args: Any) -> None:
        """Send an order from rank 0 to all other ranks."""

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over all ranks."""

    def together(self, call: Callable[[], T]) -> T:
        """Carry out one order on all ranks, so that a failure on one of them ends it on all."""

    def close(self) -> None:
        """Disconnect from the other ranks."""


class SoloConnection:
    """The connection of a single rank: orders go nowhere, and sums are its own."""

    rank, size = 0, 1

    def order(self, do: str, vector: Tensor | None = None, text: str = "", **args: Any) -> None:
        """Do nothing."""

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the tensor itself."""
        return tensor

    def together(self, call: Callable[[], T]) -> T:
        """Call, and raise `OutOfMemory` if an allocator fails."""
        try:
            return call()
        except Exception as problem:
            raise_if_out_of_memory(problem)
            raise

    def close(self) -> None:
        """Do nothing."""


class GroupConnection:
    """A torch process group: gloo between CPUs, NCCL if every rank has a GPU of its own."""

    def __init__(self, store: Store, *, rank: int, size: int, nccl: bool, timeout: float) -> None:
        self.rank, self.size = rank, size
        self._nccl, self._timeout = nccl, timedelta(seconds=timeout)
        self._agreed = True
        self.sent: Counter[str] = Counter()  # bytes exchanged with other ranks, by purpose
        store.set_timeout(self._timeout)
        try:
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if nccl else "gloo",
                store=store,
                rank=rank,
                world_size=size,
                timeout=self._timeout,
            )
            # The ranks are connected. From here on, every wait has a limit of its own.
            dist.distributed_c10d._get_default_group().set_timeout(IDLE)
        except RuntimeError as problem:
            raise RankLost("the ranks did not find each other in time") from problem

    # -- orders -------------------------------------------------------------------------------------

    def order(self, do: str, vector: Tensor | None = None, text: str = "", **args: Any) -> None:
        """Broadcast an order with its text and vector to all other ranks."""
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
        """Wait for rank 0's next order, for as long as it takes."""
        head = torch.zeros(_HEAD_BYTES, dtype=torch.uint8)
        self._broadcast(head, IDLE)
        header = json.loads(bytes(head.tolist()))
        payload = torch.zeros(header["bytes"], dtype=torch.uint8)
        if header["bytes"]:
            self._broadcast(payload, self._timeout)
        vector = None
        if header["floats"] >= 0:
            vector = torch.zeros(header["floats"], dtype=torch.float64)
            self._broadcast(vector, self._timeout)
        return Order(header["do"], header["args"], vector, bytes(payload.tolist()).decode())

    def _broadcast(self, tensor: Tensor, limit: timedelta) -> None:
        self.sent["orders"] += tensor.numel() * tensor.element_size()
        if tensor.numel():
            _wait(lambda: dist.broadcast(tensor, 0, async_op=True), limit)

    # -- sums ---------------------------------------------------------------------------------------

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum over all ranks. A long sum reaches rank 0 alone; the other ranks get their own tensor back."""
        if not self._agreed:
            self._agree(_SUCCESS)
        total = tensor.detach().clone() if self._nccl else tensor.detach().cpu().clone()
        total = total.contiguous()
        self.sent["sums"] += total.numel() * total.element_size()
        if total.numel() <= _SHORT:
            _wait(lambda: dist.all_reduce(total, async_op=True), self._timeout)
            return total.to(tensor.device)
        _wait(lambda: dist.reduce(total, 0, async_op=True), self._timeout)
        return total.to(tensor.device) if self.rank == 0 else tensor

    def together(self, call: Callable[[], T]) -> T:
        """Carry out one order on all ranks.

        Before the first sum, or at the end if there is none, the ranks exchange whether they succeeded.
        """
        self._agreed = False
        try:
            result = call()
            if not self._agreed:
                self._agree(_SUCCESS)
        except RankLost:
            raise
        except _SharedFailure as shared:
            raise shared.problem from None
        except Exception as problem:
            if self._agreed:  # the other ranks are past the exchange and cannot be told
                raise RankLost("a rank failed in the middle of a sum") from problem
            self._agree(_code(problem))
            raise_if_out_of_memory(problem)
            raise
        return result

    def _agree(self, own: int) -> None:
        """Exchange the worst result of all ranks, and raise if it is another rank's failure."""
        self._agreed = True
        worst = torch.tensor([own])
        _wait(lambda: dist.all_reduce(worst, dist.ReduceOp.MAX, async_op=True), self._timeout)
        if own != _SUCCESS or int(worst) == _SUCCESS:
            return
        if int(worst) == _NO_MEMORY:
            raise _SharedFailure(OutOfMemory("another rank ran out of memory"))
        if int(worst) == _REFUSED:
            raise _SharedFailure(EngineInputError("another rank rejected its rows"))
        if int(worst) == _UNAVAILABLE:
            raise _SharedFailure(
                RankUnavailable("another rank or its storage has a fault; its log says which")
            )
        raise _SharedFailure(RankFailed("another rank failed; its log says why"))

    def close(self) -> None:
        """Leave the process group."""
        dist.destroy_process_group()


def join(place: Rendezvous, device: torch.device, timeout: float) -> GroupConnection:
    """Connect to the other ranks, and wait until all are there."""
    if place.file:
        os.environ.setdefault(rendezvous.INTERFACE, "lo")  # nothing leaves this machine
    else:
        rendezvous.use_interface_towards(place.host, place.port)
    nccl = device.type == "cuda" and devices.own_device_each(place.local_ranks)
    return GroupConnection(
        _store(place, timeout), rank=place.rank, size=place.size, nccl=nccl, timeout=timeout
    )


def _store(place: Rendezvous, timeout: float) -> Store:
    if place.file:
        return FileStore(place.file, place.size)
    if place.rank > 0:
        # The next attempt may begin much later than `timeout` from now.
        rendezvous.wait_until_listening(place.host, place.port)
    limit = timedelta(seconds=timeout)
    try:
        return TCPStore(place.host, place.port, place.size, place.rank == 0, limit, wait_for_workers=False)
    except RuntimeError as problem:
        raise RankLost("the ranks did not find each other in time") from problem


def _wait(start: Callable[[], dist.Work | None], limit: timedelta) -> None:
    try:
        work = start()
        if work is not None:
            work.wait(limit)
    except RuntimeError as problem:
        raise RankLost("another rank is gone, or did not answer in time") from problem


def _bytes(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def _code(problem: Exception) -> int:
    if is_out_of_memory(problem):
        return _NO_MEMORY
    if isinstance(problem, EngineInputError):
        return _REFUSED
    return _UNAVAILABLE if cause_of(problem).is_fault else _FAILED


def raise_if_out_of_memory(problem: Exception) -> None:
    """Raise `OutOfMemory` if an allocator raised this error."""
    if is_out_of_memory(problem):
        raise OutOfMemory("there is not enough memory for a chunk of rows with its derivatives") from problem

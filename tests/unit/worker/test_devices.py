"""Which device is chosen, what it is called, and what is done when its memory is short."""

import numpy as np
import pytest
import torch

from worker import devices
from worker.devices import Machine
from worker.distributed.leading import Led
from worker.distributed.shares import Share, span_of
from worker.distributed.wire import NoWire
from worker.engine.families import Softmax
from worker.engine.networks.architectures import Mlp, initial_point
from worker.engine.networks.objective import NetworkObjective
from worker.engine.rows import ArrayRows
from worker.problems import DeviceError, OutOfMemory

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
def test_a_rank_gets_its_device(asked: devices.Asked, machine: Machine, rank: int, chosen: str) -> None:
    assert devices.choose(asked, local_rank=rank, machine=machine) == torch.device(chosen)


@pytest.mark.parametrize("asked", ["cuda", "mps"])
def test_a_device_that_is_not_there_is_refused(asked: devices.Asked) -> None:
    with pytest.raises(DeviceError, match=asked):
        devices.choose(asked, machine=BARE)


def test_nccl_is_for_ranks_with_a_gpu_each() -> None:
    assert [devices.own_device_each(ranks, FOUR) for ranks in (1, 4, 5)] == [True, True, False]
    assert not devices.own_device_each(1, BARE)


def test_the_settings_that_make_it_deterministic_are_named() -> None:
    before = torch.are_deterministic_algorithms_enabled()
    try:
        devices.be_deterministic()
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
def test_out_of_memory_is_recognised_by_its_class_or_its_words(problem: Exception) -> None:
    assert devices.is_out_of_memory(problem)


def test_another_error_is_not_taken_for_it() -> None:
    assert not devices.is_out_of_memory(RuntimeError("shapes do not match"))
    assert not devices.is_out_of_memory(ValueError("out of memory"))


@pytest.mark.parametrize(("size", "rows"), [(1, 1), (3, 10), (7, 100), (4, 4)])
def test_spans_cover_all_rows_once_and_differ_by_one_at_most(size: int, rows: int) -> None:
    spans = [span_of(rank, size, rows) for rank in range(size)]
    assert [row for span in spans for row in span] == list(range(rows))
    assert max(map(len, spans)) - min(map(len, spans)) <= 1


class Short:
    """Rows of which memory holds only so many at once, with the largest chunk that was asked for."""

    def __init__(self, rows: ArrayRows, most: int) -> None:
        self._rows, self.most, self.asked = rows, most, 0
        self.count, self.width, self.sample = rows.count, rows.width, rows.sample

    def chunks(self, size: int):  # type: ignore[no-untyped-def]
        for x, y in self._rows.chunks(size):
            if len(y) > self.most:
                raise torch.OutOfMemoryError("a fake one")
            yield x, y


def _led(kind: str, most: int) -> tuple[Led, Short]:
    generator = np.random.default_rng(3)
    rows = Short(ArrayRows(generator.normal(size=(300, 4)), generator.integers(0, 3, 300)), most)
    share = Share.__new__(Share)
    share._wire, share._device, share.size, share.total = NoWire(), CPU, 1, 300
    share.span, share.rows, share._operator, share._point = range(300), rows, None, None  # type: ignore[assignment]
    spec = Mlp((4, 3, 3), "tanh")
    share.objective = (
        Softmax(rows, 3, 0.1)
        if kind == "softmax"
        else NetworkObjective(rows, spec, 0.1, initial_point(spec, seed=1))
    )
    return Led(share, NoWire()), rows


@pytest.mark.parametrize("kind", ["softmax", "mlp"])
def test_chunks_are_halved_until_they_fit_and_the_figures_stay(kind: str) -> None:
    roomy, _ = _led(kind, 1000)
    short, rows = _led(kind, 1000)
    w = torch.linspace(-1, 1, roomy.dimension).double()
    wanted = roomy.evaluate(w)
    assert short.evaluate(w).rounding == wanted.rounding
    rows.most = 7  # after a first look at the rows: what was kept of larger chunks must not be used
    found = short.evaluate(w)
    assert short.local.chunk_rows <= 7  # type: ignore[attr-defined]
    assert torch.allclose(found.gradient, wanted.gradient, rtol=1e-12)
    assert abs(found.norm - wanted.norm) <= found.rounding + wanted.rounding
    rows.most = 3
    if kind == "mlp":  # streams; a convex one this small is kept whole
        assert torch.allclose(short.hvp(w, w), roomy.hvp(w, w), rtol=1e-12)


def test_where_not_even_one_row_fits_the_reason_names_memory() -> None:
    led, _ = _led("softmax", 0)
    with pytest.raises(OutOfMemory, match="memory"):
        led.evaluate(led.anchor)


def test_another_error_is_not_tried_again() -> None:
    led, rows = _led("softmax", 1000)
    rows.chunks = lambda size: (_ for _ in ()).throw(RuntimeError("shapes do not match"))  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="shapes"):
        led.evaluate(led.anchor)

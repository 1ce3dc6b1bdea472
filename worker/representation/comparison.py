"""Comparison of rows: does a row get the same features whatever else is in its batch?"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lethe.certificate.representation import RowCheck
from worker.representation.check import SAMPLES
from worker.representation.encoder import Encoder
from worker.representation.errors import RepresentationError, RowError
from worker.representation.rows import Row

ROUNDING: Final = 1e-4
"""Relative differences up to this size are put down to rounding. Rows are then run one at a time."""

_SEED: Final = 20_261_118
_RANDOM_ROWS: Final = 4
_ALONE: Final = 6  # rows that are also run alone in a batch, at two places each
_ZERO: Final = -1  # a place of a batch that is filled with zeros

Features = npt.NDArray[np.float32]
Batch = tuple[int, ...]
"""Which row is at each place of a batch, by its index."""


@dataclass(frozen=True)
class Probe:
    """One row to try a graph with, and what to call it in a message."""

    name: str
    row: Row


@dataclass(frozen=True)
class Compared:
    """How rows have to be run so that they do not influence each other."""

    width: int
    batch_rows: int
    row_check: RowCheck


def compare_rows(open_encoder: Callable[[int | None], Encoder], samples: pa.Array | None) -> Compared:
    """Find out how to run rows so that each gets the same bits every time, or raise `RepresentationError`.

    `open_encoder` opens a new session for a number of rows per batch, or for the default number. Rows are run
    alone, at other places, next to other rows, in another order, twice, and in a second session.
    """
    encoder = open_encoder(None)
    probes = _probes(encoder, samples)
    difference = _largest_difference(open_encoder, encoder, probes)
    if encoder.batch_rows == 1:
        return Compared(encoder.width, 1, "rows-run-alone")
    if difference == 0.0:
        return Compared(encoder.width, encoder.batch_rows, "batches-compared")
    if difference > ROUNDING:
        raise RepresentationError([_mixing(difference)])
    if encoder.summary.batch is not None:
        raise RepresentationError(
            [
                f"the graph takes exactly {encoder.batch_rows} rows at once, and a row's features depend on "
                "its place in the batch by rounding; export the graph with a variable number of rows, so "
                "that rows can be run one at a time"
            ]
        )
    alone = open_encoder(1)
    _largest_difference(open_encoder, alone, probes)
    return Compared(alone.width, 1, "rows-run-alone")


def _mixing(difference: float) -> str:
    return (
        "the graph mixes rows: the features of a row change when other rows are in its batch "
        f"(by {difference:.1g} of the largest feature); each row must be represented by itself"
    )


def _probes(encoder: Encoder, samples: pa.Array | None) -> list[Probe]:
    """Return zeros, seeded random rows and the first sample rows.

    A sample that cannot be read says nothing about the graph. It is reported when it is encoded.
    """
    generator = np.random.default_rng(_SEED)
    probes = [Probe("a row of zeros", encoder.reader.zero())]
    probes += [Probe("a row of random values", row) for row in encoder.reader.random(generator, _RANDOM_ROWS)]
    for index in range(min(SAMPLES, 0 if samples is None else len(samples))):
        try:
            row = encoder.reader.read(samples, index, index + 1)[0]
        except RowError:
            continue
        probes.append(Probe(f"sample row {index}", row))
    return probes


def _largest_difference(
    open_encoder: Callable[[int | None], Encoder], encoder: Encoder, probes: Sequence[Probe]
) -> float:
    """Return the largest relative difference between two results of the same row. 0 means equal bits."""
    filled = list(_filled(range(len(probes)), encoder.batch_rows))
    first = [_run(encoder, probes, batch) for batch in filled]
    reference = _check_finite(probes, filled, first)
    others = list(_layouts(len(probes), encoder.batch_rows))
    scale = max(float(np.abs(row).max()) for row in reference.values())
    difference = max(
        _difference(reference, scale, batch, features)
        for batch, features in (
            *zip(filled, first, strict=True),
            *((batch, _run(encoder, probes, batch)) for batch in others),
        )
    )
    _check_repeatable(encoder, probes, filled, first)
    _check_repeatable(open_encoder(encoder.batch_rows), probes, filled, first)
    return difference


def _filled(order: Sequence[int], size: int) -> Iterator[Batch]:
    """Yield full batches with the rows in this order, from the start again until the last one is full."""
    for start in range(0, len(order), size):
        yield tuple(order[(start + place) % len(order)] for place in range(size))


def _layouts(count: int, size: int) -> Iterator[Batch]:
    """Yield other batches of the same rows: another order, other places, and rows alone among zeros."""
    order = range(count)
    yield from _filled(order[::-1], size)
    if size == 1:
        return
    yield from _filled([*order[1::2], *order[::2]], size)
    for index in order[-_ALONE:]:
        for place in {index % size, (index + size // 2) % size}:
            yield tuple(index if at == place else _ZERO for at in range(size))


def _run(encoder: Encoder, probes: Sequence[Probe], batch: Batch) -> Features:
    return encoder.features(
        [encoder.reader.zero() if index == _ZERO else probes[index].row for index in batch]
    )


def _check_finite(
    probes: Sequence[Probe], batches: Sequence[Batch], results: Sequence[Features]
) -> dict[int, Features]:
    """Return the features of every row, from the first place where it occurs."""
    reference: dict[int, Features] = {}
    for batch, features in zip(batches, results, strict=True):
        for index, row in zip(batch, features, strict=True):
            reference.setdefault(index, row)
    reasons = {
        f"the graph's output for {probes[index].name} is infinite or not a number": None
        for index, row in sorted(reference.items())
        if not np.isfinite(row).all()
    }
    if reasons:
        raise RepresentationError(reasons)
    return reference


def _difference(reference: dict[int, Features], scale: float, batch: Batch, features: Features) -> float:
    return max(
        (
            _relative(reference[index], row, scale)
            for index, row in zip(batch, features, strict=True)
            if index != _ZERO
        ),
        default=0.0,
    )


def _relative(one: Features, other: Features, scale: float) -> float:
    """Return the largest difference as a share of the largest feature of any row."""
    if one.tobytes() == other.tobytes():
        return 0.0
    gap = np.abs(one.astype(np.float64) - other.astype(np.float64)).max()
    if not np.isfinite(gap):
        return float("inf")
    largest = max(scale, float(np.finfo(np.float32).tiny))
    return max(float(gap) / largest, float(np.finfo(np.float64).tiny))  # -0.0 and 0.0 are other bits too


def _check_repeatable(
    encoder: Encoder, probes: Sequence[Probe], batches: Sequence[Batch], results: Sequence[Features]
) -> None:
    for batch, features in zip(batches, results, strict=True):
        if _run(encoder, probes, batch).tobytes() != features.tobytes():
            raise RepresentationError(
                ["the graph is not deterministic: the same rows gave other features when they were run again"]
            )

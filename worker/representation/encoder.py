"""The encoder: turns raw rows into features, batch by batch."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lethe.certificate.representation import Representation
from worker.representation.errors import RepresentationError, RowError
from worker.representation.inspection import inspect_graph
from worker.representation.limits import Limits
from worker.representation.rows import Row, default_batch_rows, open_reader
from worker.representation.session import GraphSession, default_threads
from worker.representation.texts import TOKEN_INPUTS

LEAST_NORM: Final = 1e-30


class Encoder:
    """Turns raw rows into features with a declared graph and, for texts, a tokenizer.

    Rows run in batches of one fixed shape, and zeros fill the last one, so that a row's features do not
    depend on how many rows there are. Texts run one at a time. The graph is inspected before it is loaded,
    but its memory is limited only in a process that has called `sandbox.limit_process`.
    """

    def __init__(
        self,
        declaration: Representation,
        graph: bytes,
        tokenizer: bytes | None,
        *,
        limits: Limits,
        device: str = "cpu",
        batch_rows: int | None = None,
        threads: int | None = None,
    ) -> None:
        self.summary = inspect_graph(declaration, graph, limits)
        self.reader = open_reader(declaration, tokenizer, limits)
        self._declaration = declaration
        self._limits = limits
        self._batch_rows = _rows_per_batch(declaration, self.summary.batch, batch_rows)
        self._session = GraphSession(
            graph,
            device=device,
            seconds=limits.seconds_per_batch,
            threads=threads or default_threads(),
            memory_bytes=limits.memory_bytes,
            fixed_shapes=not declaration.needs_tokenizer,
        )
        self._width: int | None = None

    @property
    def width(self) -> int:
        """The numbers per row, measured by a first run on zeros if no row has been encoded yet."""
        if self._width is None:
            self.features([])
        assert self._width is not None
        return self._width

    @property
    def batch_rows(self) -> int:
        """The rows per run of the graph. It is 1 for texts."""
        return self._batch_rows

    def encode(self, rows: pa.Array) -> npt.NDArray[np.float32]:
        """Return the features of the rows: (len(rows), width).

        Raises `RowError` for the first row that is missing, cannot be decoded or has features that are not
        finite, and `RepresentationError` if the graph itself fails or takes too long.
        """
        features = np.empty((len(rows), self.width), np.float32)
        for start in range(0, len(rows), self._batch_rows):
            stop = min(start + self._batch_rows, len(rows))
            batch = self.features(self.reader.read(rows, start, stop))
            finite = np.isfinite(batch).all(axis=1)
            if not finite.all():
                raise RowError(
                    start + int(np.argmin(finite)), "the graph's output for it is infinite or not a number"
                )
            features[start:stop] = batch
        return features

    def features(self, rows: Sequence[Row]) -> npt.NDArray[np.float32]:
        """Run one batch of at most `batch_rows` prepared rows and return their features, finite or not."""
        filling = [self.reader.zero()] * (self._batch_rows - len(rows))
        outputs = self._session.run(self._declaration.outputs, self._inputs([*rows, *filling]))
        joined = np.concatenate([self._flat(output) for output in outputs], axis=1)
        self._check_width(joined.shape[1])
        if self._declaration.normalisation == "unit":
            joined = unit_rows(joined)
        return joined[: len(rows)]

    def _inputs(self, rows: Sequence[Row]) -> dict[str, npt.NDArray[Any]]:
        if not self._declaration.needs_tokenizer:
            return {self.summary.inputs[0]: np.stack(rows)}
        tokens = dict(zip(TOKEN_INPUTS, rows[0], strict=True))
        return {name: tokens[name][None, :] for name in self.summary.inputs}

    def _flat(self, output: Any) -> npt.NDArray[np.float32]:
        """Return one output as (rows, numbers)."""
        if not isinstance(output, np.ndarray) or output.dtype != np.float32:
            raise RepresentationError(["an output of the graph is not a tensor of float32 numbers"])
        if output.ndim == 0 or len(output) != self._batch_rows:
            raise RepresentationError(
                ["the first axis of an output is not the rows: its length differs from that of the input"]
            )
        return output.reshape(self._batch_rows, -1)

    def _check_width(self, width: int) -> None:
        if self._width is None and not 1 <= width <= self._limits.width:
            raise RepresentationError(
                [f"the outputs have {width:,} numbers per row; 1 to {self._limits.width:,} are allowed"]
            )
        self._width = self._width or width
        if width != self._width:
            raise RepresentationError(
                [
                    f"the outputs have {self._width:,} numbers for one row and {width:,} for another; choose "
                    "outputs whose size does not depend on the row"
                ]
            )


def unit_rows(features: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return every row divided by its length, computed in float64. A row of zeros stays as it is."""
    exact: npt.NDArray[np.float64] = features.astype(np.float64)
    norms = np.sqrt((exact * exact).sum(axis=1, keepdims=True))
    with np.errstate(invalid="ignore"):  # infinite rows become not a number, which the caller refuses
        scaled: npt.NDArray[np.float32] = (exact / np.maximum(norms, LEAST_NORM)).astype(np.float32)
    return scaled


def _rows_per_batch(declaration: Representation, fixed: int | None, wanted: int | None) -> int:
    """Return the rows per run: what the graph fixes, what the caller wants, or the default."""
    if wanted is not None and wanted < 1:
        raise ValueError("a batch has at least one row")
    if fixed is None:
        return wanted or default_batch_rows(declaration)
    if wanted not in (None, fixed):
        raise RepresentationError([f"the graph takes exactly {fixed} rows at once, not {wanted}"])
    return fixed

"""Raw rows: reads a column of vectors, images or texts as inputs of a graph."""

from collections.abc import Sequence
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lethe.certificate.representation import ImageInput, Representation, TextInput, VectorInput
from worker.representation.errors import RepresentationError, RowError
from worker.representation.images import ImageProblem, ImageReader
from worker.representation.limits import Limits
from worker.representation.texts import TextProblem, TextReader

Row = npt.NDArray[Any]
"""One prepared row: float32 of the declared shape, or int64 (3, tokens) for a text."""

BATCH_BYTES: Final = 64 << 20
_BATCH_ROWS: Final = {"vector": 256, "image": 16, "text": 1}


class RowReader(Protocol):
    """Reads raw rows, and makes up rows to try a graph with."""

    def read(self, rows: pa.Array, start: int, stop: int) -> Sequence[Row]:
        """Return the prepared rows from `start` to `stop`, or raise `RowError` with the first bad one."""

    def zero(self) -> Row:
        """Return a row of zeros, which also fills incomplete batches."""

    def random(self, generator: np.random.Generator, count: int) -> list[Row]:
        """Return prepared rows like those that real rows could give."""


def open_reader(declaration: Representation, tokenizer: bytes | None, limits: Limits) -> RowReader:
    """Return the reader of the declared kind of rows."""
    declared = declaration.input
    if isinstance(declared, TextInput):
        if tokenizer is None:
            raise RepresentationError(["a representation of texts needs a tokenizer, and there is none"])
        return Texts(declared, tokenizer, limits)
    if tokenizer is not None:
        raise RepresentationError([f"a tokenizer belongs to texts, but the rows are of kind {declared.kind}"])
    return Images(declared, limits) if isinstance(declared, ImageInput) else Vectors(declared)


def default_batch_rows(declaration: Representation) -> int:
    """Return how many rows run together if the graph leaves it open. Large rows run in smaller batches."""
    declared = declaration.input
    if isinstance(declared, TextInput):
        return 1
    row_bytes = 4 * int(np.prod(declared.shape))
    return max(1, min(_BATCH_ROWS[declared.kind], BATCH_BYTES // row_bytes))


class Vectors:
    """Rows of numbers: lists of floats of one length, rounded to float32."""

    def __init__(self, declared: VectorInput) -> None:
        self._width = declared.width

    def read(self, rows: pa.Array, start: int, stop: int) -> Sequence[Row]:
        """Return the vectors from `start` to `stop`, or raise `RowError` with the first bad one."""
        kind = rows.type
        listed = (pa.types.is_fixed_size_list, pa.types.is_list, pa.types.is_large_list)
        if not any(check(kind) for check in listed) or not pa.types.is_floating(kind.value_type):
            raise RepresentationError([f"the rows must be lists of floats, not {kind}"])
        if pa.types.is_fixed_size_list(kind) and kind.list_size != self._width:
            raise RepresentationError(
                [f"the rows have {kind.list_size} values each, but the declaration says {self._width}"]
            )
        part = rows.slice(start, stop - start)
        fits = pc.equal(pc.list_value_length(part), self._width).fill_null(False)
        bad = _first(np.logical_not(fits.to_numpy(zero_copy_only=False)))
        values = part.slice(0, bad).flatten()
        with np.errstate(over="ignore"):
            numbers: npt.NDArray[np.float32] = (
                values.to_numpy(zero_copy_only=False).astype(np.float32).reshape(-1, self._width)
            )
        wrong = _first(np.logical_not(np.isfinite(numbers).all(axis=1)))
        if wrong < len(numbers):
            raise RowError(
                start + wrong, "a value is missing, infinite, not a number or too large for float32"
            )
        if bad < len(part):
            reason = f"the vector does not have {self._width} values, as the declaration says"
            raise RowError(start + bad, reason if part[bad].is_valid else "the vector is missing")
        return list(numbers)

    def zero(self) -> Row:
        """Return a vector of zeros."""
        return np.zeros(self._width, np.float32)

    def random(self, generator: np.random.Generator, count: int) -> list[Row]:
        """Return normally distributed vectors, every third of them ten times larger."""
        return [
            generator.standard_normal(self._width, np.float32) * np.float32(10 if index % 3 == 2 else 1)
            for index in range(count)
        ]


class Images:
    """Rows of images: binary values, each an image file or plain pixels."""

    def __init__(self, declared: ImageInput, limits: Limits) -> None:
        self._shape = declared.shape
        self._reader = ImageReader(declared, limits)

    def read(self, rows: pa.Array, start: int, stop: int) -> Sequence[Row]:
        """Return the images from `start` to `stop`, or raise `RowError` with the first bad one."""
        if not (pa.types.is_binary(rows.type) or pa.types.is_large_binary(rows.type)):
            raise RepresentationError([f"the rows must be binary values with images, not {rows.type}"])
        return [self._read(rows[index], index) for index in range(start, stop)]

    def _read(self, value: pa.Scalar, index: int) -> Row:
        if not value.is_valid:
            raise RowError(index, "the image is missing")
        try:
            return self._reader.read(memoryview(value.as_buffer()))
        except ImageProblem as problem:
            raise RowError(index, str(problem)) from None

    def zero(self) -> Row:
        """Return an input of zeros, which need not be a black image."""
        return np.zeros(self._shape, np.float32)

    def random(self, generator: np.random.Generator, count: int) -> list[Row]:
        """Return images of random pixels, the first of them black and the second white."""
        channels, height, width = self._shape
        size = (height, width, channels)
        pixels = [np.full(size, value, np.uint8) for value in (0, 255)]
        pixels += [generator.integers(0, 256, size, np.uint8) for _ in range(max(0, count - 2))]
        return [self._reader.scale(image) for image in pixels[:count]]


class Texts:
    """Rows of texts: strings, each turned into tokens."""

    def __init__(self, declared: TextInput, tokenizer: bytes, limits: Limits) -> None:
        self._max_length = declared.max_length
        self._reader = TextReader(declared, tokenizer, limits)

    def read(self, rows: pa.Array, start: int, stop: int) -> Sequence[Row]:
        """Return the tokens of the texts from `start` to `stop`, or raise `RowError` with the first bad."""
        if not (pa.types.is_string(rows.type) or pa.types.is_large_string(rows.type)):
            raise RepresentationError([f"the rows must be strings, not {rows.type}"])
        return [self._read(rows[index], index) for index in range(start, stop)]

    def _read(self, value: pa.Scalar, index: int) -> Row:
        if not value.is_valid:
            raise RowError(index, "the text is missing")
        try:
            return self._reader.read(memoryview(value.as_buffer()))
        except TextProblem as problem:
            raise RowError(index, str(problem)) from None

    def zero(self) -> Row:
        """Return a text of one token, whose id is 0."""
        return np.array([[0], [1], [0]], np.int64)

    def random(self, generator: np.random.Generator, count: int) -> list[Row]:
        """Return random tokens: one text of the greatest length with the largest id, others shorter."""
        lengths = [self._max_length, *generator.integers(1, self._max_length + 1, max(0, count - 1))]
        rows = []
        for length in lengths[:count]:
            ids = generator.integers(0, self._reader.largest_id + 1, int(length), np.int64)
            rows.append(np.stack([ids, np.ones_like(ids), np.zeros_like(ids)]))
        if rows:
            rows[0][0, -1] = self._reader.largest_id
        return rows


def _first(flags: npt.NDArray[Any]) -> int:
    """Return the index of the first true value, or the length if there is none."""
    return int(np.argmax(flags)) if flags.any() else len(flags)

"""Reads a safetensors file as a released model must be: one float type, no gaps, every weight on the grid.

The format: eight bytes, little-endian, the length of a JSON header; the header; the tensors' bytes. Only the
standard library is used, and the weights are read in pieces: a file of any size takes the same memory.
"""

from __future__ import annotations

import json
import math
import sys
from array import array
from dataclasses import dataclass
from itertools import repeat
from typing import Any, BinaryIO, Literal

from certificate.errors import FileMismatch
from certificate.records import printable

MAX_HEADER = 100_000_000  # the format's own limit
_PIECE = 1 << 20  # bytes, a multiple of every weight's size
_WIDTHS = {"F32": 4, "F64": 8}


@dataclass(frozen=True)
class Header:
    """What the file says of itself: the metadata, the float type of all tensors, and how many weights."""

    metadata: dict[str, str]
    dtype: str
    weights: int
    start: int


def read_header(stream: BinaryIO) -> dict[str, Any] | None:
    """Read the JSON header, or return None for a file that is not safetensors."""
    length = int.from_bytes(stream.read(8), "little")
    if not 2 <= length <= MAX_HEADER:
        return None
    text = stream.read(length)
    if len(text) != length:
        return None
    try:
        document = json.loads(text.decode(), object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def check_header(stream: BinaryIO, size: int) -> Header:
    """Return what the header of a file of `size` bytes says, or raise `FileMismatch`."""
    document = read_header(stream)
    if document is None:
        raise FileMismatch("the file is not safetensors; no other kind of file is certified")
    start = stream.tell()
    metadata = document.pop("__metadata__", None)
    if not _is_text_map(metadata):
        raise FileMismatch("the file's header names no certificate")
    tensors = [_tensor(name, entry) for name, entry in document.items()]
    if not tensors:
        raise FileMismatch("the file holds no tensor")
    types = {dtype for dtype, _, _ in tensors}
    if len(types) != 1 or not types <= set(_WIDTHS):
        named = ", ".join(sorted(printable(name) for name in types))
        raise FileMismatch(f"the tensors are of type {named}; all are F32, or all are F64")
    end = 0
    for _, first, last in sorted(tensors, key=lambda tensor: tensor[1:]):
        if first != end:
            raise FileMismatch(f"the tensors leave a gap or overlap at byte {min(first, end)}")
        end = last
    if start + end != size:
        raise FileMismatch(f"the tensors end at byte {start + end}, the file at {size}")
    dtype = types.pop()
    return Header(metadata, dtype, end // _WIDTHS[dtype], start)


def _tensor(name: str, entry: Any) -> tuple[str, int, int]:
    """Return one tensor's type and byte range, once its shape agrees with the range."""
    match entry:
        case {
            "dtype": str() as dtype,
            "shape": list() as shape,
            "data_offsets": [int() as first, int() as last],
        }:
            whole = all(type(side) is int and side > 0 for side in shape)
            width = _WIDTHS.get(dtype, 0)
            exact = len(entry) == 3 and type(first) is int and type(last) is int and first >= 0
            if whole and exact and (width == 0 or last - first == math.prod(shape) * width):
                return dtype, first, last
    raise FileMismatch(f"the header's entry for the tensor {printable(name)!r} is malformed")


def check_weights(stream: BinaryIO, header: Header, grid_step: float) -> None:
    """Check that every weight is a whole multiple of the grid's step, and that none is NaN, infinite or -0.

    `fmod` is exact, and a remainder of NaN counts as one. The sign of a zero would tell on which side of it a
    weight was before it was rounded; comparisons do not see that sign, so the bytes are compared.
    """
    width = _WIDTHS[header.dtype]
    floats: Literal["f", "d"] = "f" if width == 4 else "d"
    integers: Literal["I", "Q"] = "I" if width == 4 else "Q"
    negative_zero = int.from_bytes(bytes(width - 1) + b"\x80", sys.byteorder)
    left = header.weights * width
    while left:
        data = stream.read(min(_PIECE, left))
        if not data or len(data) % width:
            raise FileMismatch("the file ends in the middle of a weight")
        left -= len(data)
        values: array[float] = array(floats, data)
        patterns: array[int] = array(integers, data)
        if sys.byteorder == "big":
            values.byteswap()
        if patterns.count(negative_zero):
            raise FileMismatch("a weight is a negative zero: its sign would tell what rounding hides")
        if not _on_grid(values, grid_step):
            raise FileMismatch(f"a weight is not a multiple of the grid's step, {grid_step!r}")


def _on_grid(values: array[float], grid_step: float) -> bool:
    try:
        return not any(map(math.fmod, values, repeat(grid_step)))
    except ValueError:  # an infinite weight
        return False


def _is_text_map(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(entry, str) for entry in value.values())


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key occurs twice in one object")
    return value

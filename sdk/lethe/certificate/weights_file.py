"""Checklist line 3: the weights file is the one certified, and holds nothing but the certified weights.

A released file is safetensors: eight bytes, little-endian, with the length of a JSON header, then the header,
then the bytes of the tensors. It is read with the standard library alone and in chunks, so a file of any size
takes the same memory.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import secrets
import sys
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any, BinaryIO, Literal

from lethe.certificate.errors import FileMismatch, UnusableInput
from lethe.certificate.predicate import Predicate
from lethe.certificate.records import file_problem, printable, unique_keys
from lethe.certificate.statement import AnyPredicate

CERTIFICATE_KEY = "lethe.certificate_id"
MODEL_KEY = "lethe.model"
VERSION_KEY = "lethe.version"
NONCE_KEY = "lethe.nonce"

MAX_HEADER = 100_000_000  # the safetensors format's own limit
_CHUNK = 1 << 20  # bytes; a multiple of the width of every weight
_WIDTHS = {"F32": 4, "F64": 8}


@dataclass(frozen=True)
class Header:
    """The contents of a valid header: metadata, the float type of all tensors, and the number of weights.

    `start` is the offset in the file at which the weights begin.
    """

    metadata: dict[str, str]
    dtype: str
    weights: int
    start: int


@dataclass(frozen=True)
class Tensor:
    """A tensor of a released file: its float type, its shape and its bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


def read_tensors(weights: bytes) -> tuple[bytes, dict[str, Tensor]]:
    """Return the text of a file's header, and its tensors in the order of their bytes.

    Raise `FileMismatch` if the file is not safetensors as it is released.
    """
    stream = io.BytesIO(weights)
    start = _check_header(stream, len(weights)).start
    text = weights[8:start]
    document = json.loads(text)
    document.pop("__metadata__")
    entries = sorted(document.items(), key=lambda item: item[1]["data_offsets"])
    tensors = {}
    for name, entry in entries:
        first, last = (start + offset for offset in entry["data_offsets"])
        tensors[name] = Tensor(entry["dtype"], tuple(entry["shape"]), weights[first:last])
    return text, tensors


def write_tensors(header: bytes, tensors: Iterable[bytes]) -> bytes:
    """Return the file with this header and the bytes of these tensors, in their order in the file."""
    return b"".join([len(header).to_bytes(8, "little"), header, *tensors])


def header_metadata(*, certificate_id: str, model: str, version: int) -> dict[str, str]:
    """Return the `__metadata__` of a released file."""
    return {CERTIFICATE_KEY: certificate_id, MODEL_KEY: model, VERSION_KEY: str(version)}


def nonce_metadata() -> dict[str, str]:
    """Return the `__metadata__` of version 0: a random nonce, so that its digest cannot confirm a guess."""
    return {NONCE_KEY: secrets.token_hex(16)}


def check_file(weights: bytes | Path, expected_sha256: str, predicate: AnyPredicate) -> str:
    """Check line 3 and return the detail to show, or raise `FileMismatch`."""
    if predicate.mechanism == "discarded":
        raise FileMismatch("the certificate is for a draw that was destroyed, so no file can belong to it")
    with _open(weights) as stream:
        try:
            actual, size = _digest(stream)
            if actual != expected_sha256:
                raise FileMismatch(f"the file's sha256 is {actual}, the certificate is for {expected_sha256}")
            stream.seek(0)
            if isinstance(predicate, Predicate):
                return f"sha256 {actual}, {_check_contents(stream, size, predicate)}"
            return f"sha256 {actual}{_check_metadata_v1(stream, predicate)}"
        except OSError as error:
            raise _unreadable(error) from None


def _check_contents(stream: BinaryIO, size: int, predicate: Predicate) -> str:
    """Check that the file holds exactly the certified weights, each on the public grid, and nothing else."""
    header = _check_header(stream, size)
    expected = header_metadata(
        certificate_id=predicate.certificate_id, model=predicate.model, version=predicate.version
    )
    for key, value in expected.items():
        if header.metadata.get(key) != value:
            named = printable(header.metadata.get(key))
            raise FileMismatch(f"the file's header says {key} is {named!r}, not {value!r}")
    if header.metadata.keys() != expected.keys():
        surplus = ", ".join(sorted(printable(key) for key in header.metadata.keys() - expected.keys()))
        raise FileMismatch(f"the file's header has metadata that a released file must not have: {surplus}")
    dimension = predicate.objective.dimension
    if header.weights != dimension:
        raise FileMismatch(f"the file holds {header.weights} weights, the certificate is for {dimension}")
    _check_weights(stream, header, predicate.noise.grid_step)
    weights = "1 weight" if dimension == 1 else f"{dimension} weights"
    return f"{weights} ({header.dtype}), each a multiple of {predicate.noise.grid_step:g}"


def _check_metadata_v1(stream: BinaryIO, predicate: AnyPredicate) -> str:
    """Check a file certified in format 1, which allowed any kind of file.

    If its header names a certificate, it must name this one.
    """
    metadata = _metadata(stream) or {}
    expected = header_metadata(
        certificate_id=predicate.certificate_id, model=predicate.model, version=predicate.version
    )
    for key, value in expected.items():
        if key in metadata and metadata[key] != value:
            raise FileMismatch(f"the file's header says {key} is {printable(metadata[key])!r}, not {value!r}")
    return ", and its header names this certificate" if CERTIFICATE_KEY in metadata else ""


def _read_header(stream: BinaryIO) -> dict[str, Any] | None:
    """Read the JSON header of a safetensors file, or return None for any other file."""
    length = int.from_bytes(stream.read(8), "little")
    if not 2 <= length <= MAX_HEADER:
        return None
    text = stream.read(length)
    if len(text) != length:
        return None
    try:
        document = json.loads(text.decode(), object_pairs_hook=unique_keys)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _check_header(stream: BinaryIO, size: int) -> Header:
    """Return the header of a file of `size` bytes, or raise `FileMismatch` unless it is well-formed.

    The tensors must all have one float type and must fill the file without gaps or overlaps.
    """
    document = _read_header(stream)
    if document is None:
        raise FileMismatch("the file is not safetensors, the only kind of file that is certified")
    start = stream.tell()
    metadata = document.pop("__metadata__", None)
    if not _is_text_map(metadata):
        raise FileMismatch("the file's header names no certificate")
    tensors = [_tensor(name, entry) for name, entry in document.items()]
    if not tensors:
        raise FileMismatch("the file contains no tensor")
    types = {dtype for dtype, _, _ in tensors}
    if len(types) != 1 or not types <= set(_WIDTHS):
        named = ", ".join(sorted(printable(name) for name in types))
        raise FileMismatch(f"the tensors have type {named}; they must all be F32 or all be F64")
    end = 0
    for _, first, last in sorted(tensors, key=lambda tensor: tensor[1:]):
        if first != end:
            raise FileMismatch(f"the tensors leave a gap or overlap at byte {min(first, end)}")
        end = last
    if start + end != size:
        raise FileMismatch(f"the tensors end at byte {start + end}, the file ends at byte {size}")
    dtype = types.pop()
    return Header(metadata, dtype, end // _WIDTHS[dtype], start)


def _tensor(name: str, entry: Any) -> tuple[str, int, int]:
    """Return one tensor's type and byte range after checking that its shape matches the range."""
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


def _check_weights(stream: BinaryIO, header: Header, grid_step: float) -> None:
    """Check that every weight is a multiple of `grid_step` and that none is NaN, infinite or -0.

    `fmod` is exact, and a NaN remainder counts as nonzero. The sign of a zero would reveal on which side of
    zero a weight was before rounding. Comparisons ignore that sign, so the bytes are compared.
    """
    width = _WIDTHS[header.dtype]
    floats: Literal["f", "d"] = "f" if width == 4 else "d"
    integers: Literal["I", "Q"] = "I" if width == 4 else "Q"
    negative_zero = int.from_bytes(bytes(width - 1) + b"\x80", sys.byteorder)
    left = header.weights * width
    while left:
        data = stream.read(min(_CHUNK, left))
        if not data or len(data) % width:
            raise FileMismatch("the file ends in the middle of a weight")
        left -= len(data)
        values: array[float] = array(floats, data)
        patterns: array[int] = array(integers, data)
        if sys.byteorder == "big":
            values.byteswap()
        if patterns.count(negative_zero):
            raise FileMismatch("a weight is a negative zero: its sign would reveal what rounding hides")
        if not _on_grid(values, grid_step):
            raise FileMismatch(f"a weight is not a multiple of the grid step, {grid_step!r}")


def _on_grid(values: array[float], grid_step: float) -> bool:
    try:
        return not any(map(math.fmod, values, repeat(grid_step)))
    except ValueError:  # an infinite weight
        return False


def _metadata(stream: BinaryIO) -> dict[str, str] | None:
    document = _read_header(stream)
    metadata = None if document is None else document.get("__metadata__", {})
    if not isinstance(metadata, dict):
        return None
    return {str(key): str(value) for key, value in metadata.items()}


def _is_text_map(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(entry, str) for entry in value.values())


def _digest(stream: BinaryIO) -> tuple[str, int]:
    """Return the SHA-256 and the size of a stream."""
    digest, size = hashlib.sha256(), 0
    while chunk := stream.read(_CHUNK):
        digest.update(chunk)
        size += len(chunk)
    return digest.hexdigest(), size


def _open(weights: bytes | Path) -> BinaryIO:
    if isinstance(weights, bytes):
        return io.BytesIO(weights)
    try:
        return weights.open("rb")
    except (OSError, ValueError) as error:
        raise _unreadable(error) from None


def _unreadable(error: Exception) -> UnusableInput:
    return UnusableInput(f"model file: {file_problem(error)}")

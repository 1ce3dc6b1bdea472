"""Weights in safetensors files. Nothing is ever unpickled.

A file is eight bytes with the length of a JSON header, the header, and the bytes of the tensors. The header
is compared with the manifest before anything else is read, so an unsuitable file takes no memory.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import IO, Any

import torch
from safetensors.torch import save
from torch import Tensor

from app.core.storage import Storage, Stored

MAX_HEADER = 8 << 20
"""The longest header that is read, in bytes. A network with ten thousand tensors has about one million."""
_TYPES = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64}
_NOT_SAFETENSORS = "not a safetensors file"


class WeightsError(Exception):
    """A file of weights is damaged, or does not fit the manifest, with every reason."""

    def __init__(self, *reasons: str) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = list(reasons)


@dataclass(frozen=True)
class TensorEntry:
    """A tensor as the header describes it: its type by the format's name, its shape and its place."""

    dtype: str
    shape: tuple[int, ...]
    first: int
    last: int


def read(
    storage: Storage, path: str, expected: Mapping[str, tuple[int, ...]], *, sha256: str | None = None
) -> dict[str, Tensor]:
    """Read the tensors that the manifest describes.

    Raises `WeightsError` with every problem if the file does not have this digest, is damaged, has other
    tensors, or contains a value that is not finite. Tensors are read one by one into their own memory.
    """
    if sha256 is not None and _digest(storage, path) != sha256:
        raise WeightsError("the stored file is not the one that was uploaded; upload it again")
    with storage.open(path) as file:
        entries = read_header(file)
        _raise(header_problems(entries, expected))
        tensors = {
            name: _read_tensor(file, entry)
            for name, entry in sorted(entries.items(), key=lambda item: item[1].first)
        }
        if file.read(1):
            raise WeightsError(_NOT_SAFETENSORS)
    bad = (name for name in expected if not torch.isfinite(tensors[name]).all())
    _raise([f"{name} contains NaN or infinity" for name in bad])
    return tensors


def _raise(problems: list[str]) -> None:
    if problems:
        raise WeightsError(*problems)


def _digest(storage: Storage, path: str) -> str:
    digest = hashlib.sha256()
    for chunk in storage.read(path):
        digest.update(chunk)
    return digest.hexdigest()


def read_header(file: IO[bytes]) -> dict[str, TensorEntry]:
    """Read the header from the beginning of a file. Raises `WeightsError` if it is malformed or too long.

    The tensors follow each other without gaps. Whether the file is long enough is not checked.
    """
    length = int.from_bytes(file.read(8), "little")
    if length > MAX_HEADER:
        raise WeightsError(f"{_NOT_SAFETENSORS}, or its header has more than {MAX_HEADER:,} bytes")
    try:
        document = json.loads(file.read(length))
        document.pop("__metadata__", None)
        entries = {name: _entry(value) for name, value in document.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise WeightsError(_NOT_SAFETENSORS) from None
    end = 0
    for entry in sorted(entries.values(), key=lambda entry: (entry.first, entry.last)):
        if entry.first != end or entry.last < end:
            raise WeightsError(_NOT_SAFETENSORS)
        end = entry.last
    return entries


def _entry(value: Any) -> TensorEntry:
    dtype, shape, (first, last) = value["dtype"], tuple(value["shape"]), value["data_offsets"]
    if not isinstance(dtype, str) or not all(type(n) is int and n >= 0 for n in (*shape, first, last)):
        raise ValueError
    if dtype in _TYPES and last - first != prod(shape) * _TYPES[dtype].itemsize:
        raise ValueError
    return TensorEntry(dtype, shape, first, last)


def _read_tensor(file: IO[bytes], entry: TensorEntry) -> Tensor:
    """Read the next tensor of the file."""
    tensor = torch.empty(entry.shape, dtype=_TYPES[entry.dtype])
    left = memoryview(tensor.reshape(-1).view(torch.uint8).numpy().data)
    while left:
        chunk = file.read(min(len(left), 1 << 24))
        if not chunk:
            raise WeightsError(_NOT_SAFETENSORS)
        left[: len(chunk)] = chunk
        left = left[len(chunk) :]
    return tensor


def header_problems(entries: Mapping[str, TensorEntry], expected: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Return every way in which the tensors differ from those that the manifest describes."""
    problems = [f"the tensor {name} is missing" for name in expected if name not in entries]
    if surplus := len(set(entries) - set(expected)):
        tensors_besides = "1 tensor" if surplus == 1 else f"{surplus} tensors"
        problems.append(f"the file has {tensors_besides} besides {', '.join(expected)}")
    for name, shape in expected.items():
        if name not in entries:
            continue
        entry = entries[name]
        if entry.shape != shape:
            problems.append(f"{name} has the shape {entry.shape}, expected {shape}")
        if entry.dtype not in _TYPES:
            problems.append(f"{name} has the type {entry.dtype[:20]}, expected floats")
    return problems


def write(storage: Storage, path: str, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> Stored:
    """Write tensors and metadata as a safetensors file."""
    return storage.write(
        path, [save({name: tensor.cpu().clone() for name, tensor in tensors.items()}, dict(metadata))]
    )

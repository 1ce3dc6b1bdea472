"""Weights in safetensors files. Nothing is ever unpickled."""

import hashlib
from collections.abc import Mapping

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from app.core.storage import Storage, Stored


class WeightsError(Exception):
    """A file of weights is damaged, or does not fit the manifest."""


def read(storage: Storage, path: str, *, sha256: str | None = None) -> dict[str, Tensor]:
    """Read the tensors of a file. Raises `WeightsError` if it does not have this digest or is damaged."""
    content = b"".join(storage.read(path))
    if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
        raise WeightsError("the stored file is not the one that was uploaded; upload it again")
    try:
        return dict(load(content))
    except SafetensorError:
        raise WeightsError("not a safetensors file") from None


def write(storage: Storage, path: str, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> Stored:
    """Write tensors and metadata as a safetensors file."""
    return storage.write(
        path, [save({name: tensor.cpu().clone() for name, tensor in tensors.items()}, dict(metadata))]
    )


def check_shapes(tensors: Mapping[str, Tensor], expected: Mapping[str, tuple[int, ...]]) -> None:
    """Raise `WeightsError` unless the tensors are those that the manifest describes."""
    if problems := shape_problems(tensors, expected):
        raise WeightsError("; ".join(problems))


def shape_problems(tensors: Mapping[str, Tensor], expected: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Return every way in which the tensors differ from those that the manifest describes."""
    problems = [f"the tensor {name} is missing" for name in expected if name not in tensors]
    if surplus := len(set(tensors) - set(expected)):
        tensors_besides = "1 tensor" if surplus == 1 else f"{surplus} tensors"
        problems.append(f"the file has {tensors_besides} besides {', '.join(expected)}")
    for name, shape in expected.items():
        if name not in tensors:
            continue
        if tuple(tensors[name].shape) != shape:
            problems.append(f"{name} has the shape {tuple(tensors[name].shape)}, expected {shape}")
        if not tensors[name].is_floating_point():
            problems.append(f"{name} has the type {tensors[name].dtype}, expected floats")
        elif not torch.isfinite(tensors[name]).all():
            problems.append(f"{name} contains NaN or infinity")
    return problems

"""Weights as safetensors. Nothing is ever unpickled."""

import hashlib
from collections.abc import Mapping

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from app.storage import Storage, Stored


class CheckpointError(Exception):
    """The weights do not fit the manifest."""


def read(storage: Storage, path: str, *, sha256: str | None = None) -> dict[str, Tensor]:
    content = b"".join(storage.read(path))
    if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
        raise CheckpointError("the file is not the one that was sent")
    try:
        return dict(load(content))
    except SafetensorError:
        raise CheckpointError("not a safetensors file") from None


def write(storage: Storage, path: str, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> Stored:
    return storage.write(
        path, [save({name: tensor.cpu().clone() for name, tensor in tensors.items()}, dict(metadata))]
    )


def check_shapes(tensors: Mapping[str, Tensor], expected: Mapping[str, tuple[int, ...]]) -> None:
    if found := shape_problems(tensors, expected):
        raise CheckpointError("; ".join(found))


def shape_problems(tensors: Mapping[str, Tensor], expected: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Every way in which the tensors are not those of the manifest."""
    found = [f"the tensor {name} is missing" for name in expected if name not in tensors]
    if surplus := len(set(tensors) - set(expected)):
        found.append(f"there are {surplus} tensors besides {', '.join(expected)}")
    for name, shape in expected.items():
        if name not in tensors:
            continue
        if tuple(tensors[name].shape) != shape:
            found.append(f"{name} has the shape {tuple(tensors[name].shape)}, expected {shape}")
        if not tensors[name].is_floating_point():
            found.append(f"{name} has the type {tensors[name].dtype}, expected floats")
        elif not torch.isfinite(tensors[name]).all():
            found.append(f"{name} holds NaN or infinity")
    return found

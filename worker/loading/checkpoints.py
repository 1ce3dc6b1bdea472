"""Weights as safetensors. Nothing is ever unpickled."""

from collections.abc import Mapping

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from app.storage import Storage, Stored


class CheckpointError(Exception):
    """The weights do not fit the manifest."""


def read(storage: Storage, path: str) -> dict[str, Tensor]:
    try:
        return dict(load(b"".join(storage.read(path))))
    except SafetensorError:
        raise CheckpointError("not a safetensors file") from None


def write(storage: Storage, path: str, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> Stored:
    return storage.write(
        path, [save({name: tensor.cpu().clone() for name, tensor in tensors.items()}, dict(metadata))]
    )


def check_shapes(tensors: Mapping[str, Tensor], expected: Mapping[str, tuple[int, ...]]) -> None:
    if set(tensors) != set(expected):
        raise CheckpointError(f"the tensors are {_names(tensors)}, expected {_names(expected)}")
    for name, shape in expected.items():
        if tuple(tensors[name].shape) != shape:
            raise CheckpointError(f"{name} has the shape {tuple(tensors[name].shape)}, expected {shape}")
        if not tensors[name].is_floating_point() or not torch.isfinite(tensors[name]).all():
            raise CheckpointError(f"{name} is not a tensor of finite floats")


def _names(tensors: Mapping[str, object]) -> str:
    return ", ".join(sorted(tensors)) or "none"

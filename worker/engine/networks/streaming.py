"""What the objectives of networks share: named parameters, passes over chunks of rows, memory per row."""

import math
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from worker.engine import validation
from worker.engine.networks.losses import CrossEntropy, HalfSquared, Loss
from worker.engine.objective import EvaluatedObjective, Reduce
from worker.engine.rows import Rows
from worker.engine.validation import EngineInputError

Shapes = Mapping[str, tuple[int, ...]]


class StreamedObjective(EvaluatedObjective):
    """The part of a network's objective that does not depend on how the network is differentiated."""

    rows: Rows
    device: torch.device
    shapes: Shapes
    dimension: int
    loss: Loss
    chunk_rows: int
    _reduce: Reduce
    _checked = 0  # number of chunks checked so far

    def unflatten(self, w: Tensor) -> dict[str, Tensor]:
        """Split (d,) into parameters by name. Returns views."""
        return split_parameters(w, self.shapes)

    def flatten(self, parts: Mapping[str, Tensor]) -> Tensor:
        """Join named parameters into one float64 vector (d,). The inverse of `unflatten`."""
        if set(parts) != set(self.shapes):
            raise EngineInputError(f"expected {sorted(self.shapes)}, got {sorted(parts)}")
        for name, shape in self.shapes.items():
            if tuple(parts[name].shape) != shape:
                raise EngineInputError(f"{name} must have shape {shape}, got {tuple(parts[name].shape)}")
        flat = torch.cat([parts[name].to(self.device, torch.float64).reshape(-1) for name in self.shapes])
        return validation.checked_point(flat, self.dimension, "parameters")

    def chunks(self, dtype: torch.dtype = torch.float64, *, skip: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the rows on the device, without the first `skip` chunks. Each is checked when first read."""
        for index, (source, targets) in enumerate(self.rows.chunks(self.chunk_rows)):
            if index == self._checked:
                validation.check_type(source)
                validation.check_features(source, index * self.chunk_rows)
                self.loss.check(targets, index * self.chunk_rows)
                self._checked += 1
            if index >= skip:
                yield source.to(self.device, dtype), targets.to(self.device)

    def reduce(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over ranks."""
        return self._reduce(tensor)


def split_parameters(flat: Tensor, shapes: Shapes) -> dict[str, Tensor]:
    """Split a flat vector into tensors by name. Returns views."""
    pieces = torch.split(flat, [math.prod(shape) for shape in shapes.values()])
    return {name: piece.view(shape) for (name, shape), piece in zip(shapes.items(), pieces, strict=True)}


def loss_for(outputs: int, classes: int | None) -> Loss:
    """Return half the squared error for one output, cross-entropy otherwise.

    Raises EngineInputError if `classes` is another number.
    """
    if classes is not None and classes != outputs:
        raise EngineInputError(f"the network has {outputs} outputs, not {classes}")
    return HalfSquared() if outputs == 1 else CrossEntropy(outputs)


def differentiated_row_bytes(width: int, forward: Callable[[Tensor], object], device: torch.device) -> int:
    """Return the float64 memory of one more row and of what differentiating `forward` keeps of it."""
    one, two = (
        _saved_numbers(forward, torch.zeros(rows, width, dtype=torch.float64, device=device))
        for rows in (1, 2)
    )
    return 8 * (4 * width + 2 * max(1, two - one))


def _saved_numbers(forward: Callable[[Tensor], object], x: Tensor) -> int:
    """Return how many numbers autograd saves in a forward pass over the rows x."""
    saved = 0

    def count(tensor: Tensor) -> Tensor:
        nonlocal saved
        saved += tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        forward(x)
    return saved

"""Row sources: anything that can be read from front to back in chunks, and at chosen indices."""

from collections.abc import Iterator
from typing import Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Matrix: TypeAlias = NDArray[np.generic] | Tensor


class Rows(Protocol):
    """Read-only rows. Features are float32 or float64, and a float32 value is taken as exact."""

    @property
    def count(self) -> int:
        """Number of rows."""
        ...

    @property
    def width(self) -> int:
        """Number of features per row."""
        ...

    def chunks(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield every row once, always in the same order: (c, width), (c,).

        Only the last chunk may be shorter than `size`.
        """
        ...

    def sample(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows at `indices` (k,): (k, width), (k,)."""
        ...


class ArrayRows:
    """Rows of an array, tensor or memory map, read piece by piece and never copied as a whole."""

    def __init__(self, features: Matrix, targets: Matrix) -> None:
        if features.ndim != 2 or targets.ndim != 1 or features.shape[0] != targets.shape[0]:
            shapes = f"{tuple(features.shape)} and {tuple(targets.shape)}"
            raise ValueError(f"features must be (n, width) and targets (n,), got {shapes}")
        self._features = features
        self._targets = targets

    @property
    def count(self) -> int:
        """Number of rows."""
        return int(self._features.shape[0])

    @property
    def width(self) -> int:
        """Number of features per row."""
        return int(self._features.shape[1])

    def chunks(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the rows in order, `size` at a time: (c, width), (c,)."""
        for start in range(0, self.count, size):
            piece = slice(start, start + size)
            yield _tensor(self._features[piece]), _tensor(self._targets[piece])

    def sample(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows at `indices` (k,): (k, width), (k,)."""
        if isinstance(self._features, Tensor) and isinstance(self._targets, Tensor):
            return self._features[indices], self._targets[indices]
        picks = indices.cpu().numpy()
        return _tensor(self._features[picks]), _tensor(self._targets[picks])


def _tensor(piece: Matrix) -> Tensor:
    if isinstance(piece, Tensor):
        return piece
    # torch needs writable memory. Of a read-only map only this chunk is copied.
    return torch.from_numpy(piece if piece.flags.writeable else piece.copy())

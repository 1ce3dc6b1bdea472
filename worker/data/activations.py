"""Activations: what the layers before the first trained one compute of each row, kept in an unnamed file.

They are a function of one row and of the public anchor, so they are computed once when the objective is
opened. The file disappears with the process.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from worker.engine.linearised.objective import preparation
from worker.engine.rows import ArrayRows, Rows


def prepare_rows(
    rows: Rows,
    module: nn.Module,
    anchor: Tensor,
    layers: Sequence[str],
    *,
    device: torch.device | str,
    scratch: Path,
) -> ArrayRows | None:
    """Return the activations of all rows before the first trained layer, or None if no layer is before it."""
    prepare = preparation(module, anchor, layers, device=device)
    if prepare is None:
        return None
    targets: list[Tensor] = []
    with tempfile.TemporaryFile(dir=scratch) as file:
        width = 0
        for x, y in rows.chunks(prepare.chunk_rows):
            prepared = prepare(x.to(device, torch.float64)).cpu()
            width = prepared.shape[1]
            file.write(prepared.numpy().tobytes())
            targets.append(y.clone())
        file.flush()
        # The mapping outlives the file object, and the file has no name.
        mapped = np.memmap(file, dtype=np.float64, mode="r", shape=(rows.count, width))
    return ArrayRows(mapped, torch.cat(targets))

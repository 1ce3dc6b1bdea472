"""Rows for the network benchmarks, and an anchor fitted on public rows by stochastic gradients."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from worker.engine.networks.architectures import AllCnn, Mlp, build
from worker.engine.rows import ArrayRows

_BATCH = 64
_RATE, _DECAY = (
    1e-2,
    0.1,
)  # AdamW's rate and decay. Small weights keep M small, so that B2 needs no tiny gradient.


def scaled(
    pixels: NDArray[np.uint8], shape: tuple[int, int, int], side: int | None, centre: float
) -> NDArray[np.float32]:
    """Scale pixels to [0, 1], subtract `centre` and average down to `side`² pixels.

    (n, width) -> (n, width)

    No constant depends on the data.
    """
    x = pixels.astype(np.float32) / np.float32(255)
    if side is not None:
        channels, height, width = shape
        blocks = x.reshape(-1, channels, side, height // side, side, width // side)
        x = blocks.mean((3, 5)).reshape(len(x), -1)
    return np.ascontiguousarray(x - np.float32(centre))


def stochastic_anchor(
    rows: ArrayRows, spec: Mlp | AllCnn, start: Tensor, *, epochs: int, seed: int
) -> Tensor:
    """Fit an anchor with AdamW in float32 and a one-cycle rate. -> (d,)

    An anchor need not be a minimiser.
    """
    module = build(spec).float()
    torch.nn.utils.vector_to_parameters(start.float(), module.parameters())
    x, y = rows.sample(torch.arange(rows.count))
    generator = torch.Generator().manual_seed(seed)
    batches = rows.count // _BATCH
    optimiser = torch.optim.AdamW(module.parameters(), lr=_RATE, weight_decay=_DECAY)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=_RATE, total_steps=epochs * batches + 1)
    for _ in range(epochs):
        order = torch.randperm(rows.count, generator=generator)[: batches * _BATCH]
        for picks in order.view(batches, _BATCH):
            optimiser.zero_grad()
            functional.cross_entropy(module(x[picks]), y[picks]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            rate.step()
    return torch.nn.utils.parameters_to_vector(module.parameters()).detach().double()

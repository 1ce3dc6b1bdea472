"""Which rows shape a sampled Hessian: those that add to it, each counted for those it stands for.

After training most rows are fitted and bend nothing, while an erasure leaves its class with few rows and all
of the remaining gradient; equal chances would then spend a sample where nothing is to be learnt. Drawing by
score and dividing by it keeps the mean exact (Xu et al. 2016, non-uniform sub-sampled Newton).
"""

import torch
from torch import Tensor

from worker.engine.linear import _stratified
from worker.engine.objective import Sampling

_EVEN = 0.2  # this share of the chances is spread evenly, so no row counts for more than five times its share


def weighted_sample(scores: Tensor | None, count: int, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Indices (k,), sorted, and float32 weights (k,) under which a weighted sum has the full sum as mean."""
    assert sampling.rows is not None
    total = 0.0 if scores is None else float(scores.sum(dtype=torch.float64))
    if scores is None or not 0 < total < float("inf"):
        return _stratified(count, sampling), torch.full((sampling.rows,), count / sampling.rows)
    chances = (1 - _EVEN) * scores.double() / total + _EVEN / count
    edges = chances.cumsum(0)
    generator = torch.Generator().manual_seed(sampling.seed)
    jitter = torch.rand(sampling.rows, generator=generator, dtype=torch.float64)
    places = (torch.arange(sampling.rows, dtype=torch.float64) + jitter) / sampling.rows * edges[-1]
    picks = torch.searchsorted(edges, places).clamp_(max=count - 1)
    return picks, (1 / (sampling.rows * chances[picks])).float()

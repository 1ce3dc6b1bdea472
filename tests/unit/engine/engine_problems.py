"""Small problems shared by the engine tests."""

import numpy as np
import torch

from worker.engine.families import Logistic, Ridge, Softmax
from worker.engine.linear import LinearObjective
from worker.engine.rows import ArrayRows

FAMILIES = ("softmax", "logistic", "ridge")


def make_problem(
    family: str,
    *,
    n: int = 40,
    width: int = 6,
    lam: float = 1e-2,
    bias: bool = True,
    seed: int = 0,
    scale: float = 1.0,
    classes: int = 4,
) -> LinearObjective:
    rng = np.random.default_rng(seed)
    features = scale * rng.standard_normal((n, width))
    truth = rng.standard_normal((width, classes)) / scale
    if family == "ridge":
        return Ridge(ArrayRows(features, features @ truth[:, 0] + rng.standard_normal(n)), lam, bias=bias)
    logits = 2 * features @ truth
    if family == "logistic":
        labels = (logits[:, 0] + rng.logistic(size=n) > 0).astype(np.int64)
        return Logistic(ArrayRows(features, labels), lam, bias=bias)
    labels = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
    return Softmax(ArrayRows(features, labels), classes, lam, bias=bias)


def random_point(objective: LinearObjective, seed: int = 1, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(objective.dimension, generator=generator, dtype=torch.float64)

"""Row samples for Hessians: how many rows to use, and which ones.

A product over a fraction φ of the rows costs φ passes. Solving with the sampled Hessian instead of H leaves a
relative error of about √(effective dimension / rows) in the gradient. With a few thousand rows, each step
shrinks the gradient about tenfold for half a pass of products. If a step shrinks it by less than half without
being limited by the trust region, the sample is the bottleneck, and the fraction grows.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from worker.engine.objective import EXACT, Sampling

_EVEN_SHARE = (
    0.2  # share of the probability spread evenly, so that no row weighs more than five times its share
)


@dataclass(slots=True)
class SampleSchedule:
    """Chooses the fraction of rows for the next Hessian from how well earlier steps went."""

    count: int
    width: int
    fraction: float
    least_rows: int
    most_bytes: int
    seed: int
    slow: int = 0
    drawn: int = 0

    def next(self) -> Sampling:
        """Return a fresh sample, or `EXACT` once the sample would reach half of the rows."""
        return self.draw(self.fraction)

    def draw(self, fraction: float) -> Sampling:
        """Return a fresh sample of this fraction, or `EXACT` if it would reach half of the rows."""
        self.drawn += 1
        rows = max(self.least_rows, int(fraction * self.count))
        if 2 * rows >= self.count:
            return EXACT
        fitting = max(1, self.most_bytes // (4 * self.width))
        return Sampling(rows=min(rows, fitting), seed=self.seed + self.drawn)

    def give_up(self) -> None:
        """Use every row in float64 from now on, because single precision failed."""
        self.fraction = 1.0

    def learn(self, *, accepted: bool, shrinkage: float, boundary: bool) -> None:
        """Update the fraction after a step that changed ‖g‖ by the factor `shrinkage`."""
        if accepted and (shrinkage < 0.5 or boundary):
            self.slow = 0
            return
        self.slow += 1
        if self.slow >= 2:
            self.slow = 0
            self.fraction = min(1.0, 4 * self.fraction)


def stratified_indices(count: int, sampling: Sampling) -> Tensor:
    """Return one random row index from each of k equal stretches of the data. -> (k,)

    The indices are sorted and every row is equally likely.
    """
    assert sampling.rows is not None
    generator = torch.Generator().manual_seed(sampling.seed)
    jitter = torch.rand(sampling.rows, generator=generator, dtype=torch.float64)
    places = (torch.arange(sampling.rows, dtype=torch.float64) + jitter) * (count / sampling.rows)
    return places.long().clamp_(max=count - 1)


def weighted_sample(scores: Tensor | None, count: int, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Draw rows by score, with weights that make a weighted sum unbiased.

    Returns sorted indices (k,) and float32 weights (k,). After training, most rows are fitted and contribute
    nothing to the Hessian, while an erasure leaves few rows of its class and all of the remaining gradient.
    Uniform sampling would waste most of the sample. Drawing in proportion to the score and dividing by the
    probability keeps the mean exact (Xu et al. 2016, non-uniform sub-sampled Newton). Without usable scores
    the draw is stratified and uniform.
    """
    assert sampling.rows is not None
    total = 0.0 if scores is None else float(scores.sum(dtype=torch.float64))
    if scores is None or not 0 < total < float("inf"):
        return stratified_indices(count, sampling), torch.full((sampling.rows,), count / sampling.rows)
    chances = (1 - _EVEN_SHARE) * scores.double() / total + _EVEN_SHARE / count
    edges = chances.cumsum(0)
    generator = torch.Generator().manual_seed(sampling.seed)
    jitter = torch.rand(sampling.rows, generator=generator, dtype=torch.float64)
    places = (torch.arange(sampling.rows, dtype=torch.float64) + jitter) / sampling.rows * edges[-1]
    picks = torch.searchsorted(edges, places).clamp_(max=count - 1)
    return picks, (1 / (sampling.rows * chances[picks])).float()

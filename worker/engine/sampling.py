"""How much of the data each Hessian sees: little while that pays, all of it when it stops paying.

A product over a share φ of the rows costs φ passes, and solving with it instead of H leaves a relative
error of about √(effective dimension / rows) in the gradient: with a few thousand rows each step shrinks the
gradient some tenfold for half a pass of products. A step that shrinks it by less than half without being
held back by the region means that the sample, not the distance, is the limit, and the share grows.
"""

from dataclasses import dataclass

from worker.engine.objective import EXACT, Sampling


@dataclass(slots=True)
class SampleSchedule:
    """The share of rows for the next Hessian."""

    count: int
    width: int
    fraction: float
    least_rows: int
    most_bytes: int
    seed: int
    slow: int = 0
    drawn: int = 0

    def next(self) -> Sampling:
        """A fresh sample, or every row once half of them would be drawn."""
        self.drawn += 1
        rows = max(self.least_rows, int(self.fraction * self.count))
        if 2 * rows >= self.count:
            return EXACT
        fitting = max(1, self.most_bytes // (4 * self.width))
        return Sampling(rows=min(rows, fitting), seed=self.seed + self.drawn)

    def give_up(self) -> None:
        """From now on every row, in float64: single precision failed."""
        self.fraction = 1.0

    def learn(self, *, accepted: bool, shrinkage: float, boundary: bool) -> None:
        """After a step that left ‖g‖ at `shrinkage` times what it was."""
        if accepted and (shrinkage < 0.5 or boundary):
            self.slow = 0
            return
        self.slow += 1
        if self.slow >= 2:
            self.slow = 0
            self.fraction = min(1.0, 4 * self.fraction)

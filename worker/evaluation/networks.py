"""Networks are scored like linear models: through the same few methods."""

from collections.abc import Iterator

from torch import Tensor

from worker.engine.networks.objective import NetworkObjective
from worker.evaluation.utility import Holdout


class NetworkHoldout:
    """A network's rows, predictor and loss, class-major as `Holdout` has them."""

    def __init__(self, objective: NetworkObjective) -> None:
        self._objective = objective

    def chunks(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self._objective.chunks()

    def logits(self, w: Tensor, x: Tensor) -> Tensor:  # (d,), (c, width) -> (outputs, c)
        return self._objective.logits(w, x).detach().T

    def residual(self, z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        found = self._objective.loss.residual(z.T, y)
        return found.loss, found.q.T

    def check_targets(self, y: Tensor, first: int) -> None:
        self._objective.loss.check(y, first)


def holdout_of(objective: object) -> Holdout | None:
    """How an objective's rows are scored; None for a plug-in that has no such methods."""
    if isinstance(objective, NetworkObjective):
        return NetworkHoldout(objective)
    return objective if isinstance(objective, Holdout) else None

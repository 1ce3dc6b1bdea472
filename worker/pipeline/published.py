"""Published methods on a manifest: their constants are the publications', the rest is the policy's."""

from torch import Tensor

from app.db.manifest import Manifest
from app.db.policy import Method
from worker.engine.published import guo2020, tr_paper, zhang2024
from worker.engine.published.guo2020 import GuoSettings
from worker.engine.published.outcome import PublishedResult
from worker.engine.published.tr_paper import PaperSettings
from worker.engine.published.zhang2024 import ZhangSettings
from worker.loading.families import FamilyObjective


def unlearn(
    manifest: Manifest, method: Method, objective: FamilyObjective, start: Tensor, erased: int
) -> PublishedResult:
    """From the published version `start` (d,); `objective` is over the records that stay."""
    chosen = manifest.policy.published
    if method == "tr-paper":
        return tr_paper.unlearn(objective, start, settings=PaperSettings(steps=chosen.steps, tau=chosen.tau))
    if method == "guo2020":
        settings = GuoSettings(row_bound=chosen.row_bound)
        return guo2020.unlearn(objective, start, erased=erased, settings=settings)
    return zhang2024.unlearn(
        objective,
        start,
        ZhangSettings(constraint=chosen.constraint, damping=chosen.damping, row_bound=chosen.row_bound),
    )

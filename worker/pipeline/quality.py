"""The quality gate: what the draw is worth on the holdout, beside the version it would replace.

The draw counts as a release from the moment it is looked at, whatever the answer: choosing among draws by
their score would break the guarantee.
"""

from pathlib import Path

from torch import Tensor

from app.db.states import HeldReason, PartRole
from certificate.evidence import Utility
from worker.evaluation.networks import holdout_of
from worker.evaluation.utility import Holdout, classification, regression
from worker.loading import checkpoints
from worker.loading.families import family_of
from worker.pipeline.certify import Refusal
from worker.pipeline.context import Context
from worker.pipeline.release import Draft
from worker.pipeline.resolve import Swap
from worker.pipeline.solve import objective_here, published_weights


def measure(context: Context, draft: Draft, swap: Swap, scratch: Path) -> Utility | None:
    """None without a holdout, and for families that have no loss of their own to show.

    The holdout is the one that will be there afterwards: those erased are not consulted.
    """
    holdout = _holdout_after(context, swap)
    if not holdout:
        return None
    objective = objective_here(context, holdout, scratch / "holdout")
    rows = holdout_of(objective)
    if rows is None:
        return None
    tensors = checkpoints.read(context.services.storage, draft.stored.path, sha256=draft.stored.sha256)
    released = objective.flatten(tensors)
    before = _score(context, rows, published_weights(context, objective))
    after = _score(context, rows, released)
    return Utility(f1_before=before[0], f1_after=after[0], loss_before=before[1], loss_after=after[1])


def _holdout_after(context: Context, swap: Swap) -> tuple[str, ...]:
    rewritten = {part.replaces: part.stored.path for part in swap.rewritten}
    parts = (part for part in context.parts(PartRole.HOLDOUT) if part.id not in swap.emptied)
    return tuple(rewritten.get(part.id, part.path) for part in parts)


def _score(context: Context, rows: Holdout, w: Tensor) -> tuple[float | None, float]:
    """Micro-F1 in points, and the mean loss; regression has no F1."""
    if family_of(context.manifest).classes(context.manifest) is None:
        return None, regression(rows, w).loss
    found = classification(rows, w)
    return 100 * found.micro_f1, found.loss


def gate_refusal(context: Context, draft: Draft, utility: Utility | None) -> Refusal | None:
    """Never for a retraining: it is a function of the retained rows alone, and must not become one of a
    comparison with the version before; nor for rows that join, which no person waits for."""
    gate = context.manifest.policy.quality_gate
    if gate is None or utility is None or draft.mechanism == "retrain":
        return None
    worse = [
        _worse("F1 falls", utility.f1_before, utility.f1_after, gate.max_f1_drop),
        _worse("loss rises", utility.loss_after, utility.loss_before, gate.max_loss_rise),
    ]
    reasons = [reason for reason in worse if reason]
    return Refusal(HeldReason.QUALITY_GATE, "; ".join(reasons)) if reasons else None


def _worse(what: str, high: float | None, low: float | None, limit: float | None) -> str | None:
    if high is None or low is None or limit is None or high - low <= limit:
        return None
    return f"{what} by {high - low:.2g} on the holdout, the policy allows {limit:.4g}"

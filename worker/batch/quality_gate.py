"""The quality gate: how the draw scores on the holdout.

A floor (`min_f1`, `max_loss`) looks at the draw and the holdout alone. A gate that compares (`max_f1_drop`,
`max_loss_rise`) also looks at the version before, which the erased rows have shaped: its decision depends on
them.

The draw counts as a release from the moment it is looked at, whatever the answer: choosing among draws by
their score would break the guarantee.
"""

from pathlib import Path

from torch import Tensor

from app.db.policy import QualityGate
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
    """Return why the draw is held, or None.

    A retraining is a function of the retained rows alone, and a comparison with the version before would end
    that: only the floor applies to it. Rows that join, which no person waits for, are not gated at all.
    """
    gate = context.manifest.policy.quality_gate
    if gate is None or utility is None:
        return None
    reasons = floor_reasons(gate, utility)
    if draft.mechanism != "retrain":
        reasons += comparison_reasons(gate, utility)
    return Refusal(HeldReason.QUALITY_GATE, "; ".join(reasons)) if reasons else None


def floor_reasons(gate: QualityGate, utility: Utility) -> list[str]:
    """Return which floor the new version misses, by its own score on the holdout."""
    reasons = []
    if gate.min_f1 is not None and utility.f1_after is not None and utility.f1_after < gate.min_f1:
        reasons.append(f"F1 is {utility.f1_after:.3g} on the holdout, the policy wants {gate.min_f1:.4g}")
    if gate.max_loss is not None and utility.loss_after is not None and utility.loss_after > gate.max_loss:
        reasons.append(
            f"the loss is {utility.loss_after:.3g} on the holdout, the policy allows {gate.max_loss:.4g}"
        )
    return reasons


def comparison_reasons(gate: QualityGate, utility: Utility) -> list[str]:
    """Return by how much the new version scores worse than the one before, where that is too much."""
    worse = [
        _worse("F1 falls", utility.f1_before, utility.f1_after, gate.max_f1_drop),
        _worse("loss rises", utility.loss_after, utility.loss_before, gate.max_loss_rise),
    ]
    return [reason for reason in worse if reason]


def _worse(what: str, high: float | None, low: float | None, limit: float | None) -> str | None:
    if high is None or low is None or limit is None or high - low <= limit:
        return None
    return f"{what} by {high - low:.2g} on the holdout, the policy allows {limit:.4g}"

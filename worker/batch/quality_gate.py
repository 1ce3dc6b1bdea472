"""Stage 6, quality gate: score the draw on the holdout, and hold it if it scores too low.

A floor (`min_f1`, `max_loss`) depends on the draw and the holdout alone. A comparison (`max_f1_drop`,
`max_loss_rise`) also depends on the previous version, which the erased rows have shaped, so its decision
depends on them.

The draw is recorded before it is scored and counts as a release whatever the result. Choosing among draws by
their scores would break the guarantee.
"""

from pathlib import Path

from torch import Tensor

from app.db.states import HeldReason, PartRole
from lethe.certificate.evidence import Utility
from lethe.policy import QualityGate
from worker.batch.release import Draw
from worker.batch.resolve import PartChanges
from worker.context import JobContext, Refusal
from worker.data import weights
from worker.data.families import family_of
from worker.evaluation.utility import Holdout, classification, holdout_of, regression
from worker.fitting import local_objective, published_weights


def score_draw(context: JobContext, draw: Draw, scratch: Path) -> Utility | None:
    """Score the draw and the previous version on the holdout as it will be after publication.

    Erased people's rows are not used. Returns None without a holdout, and for families that cannot be scored.
    """
    holdout = _remaining_holdout(context, draw.changes)
    if not holdout:
        return None
    objective = local_objective(context, holdout, scratch / "holdout")
    rows = holdout_of(objective)
    if rows is None:
        return None
    stored = draw.draft.stored
    expected = family_of(context.manifest).shapes(context.manifest)
    tensors = weights.read(context.services.storage, stored.path, expected, sha256=stored.sha256)
    released = objective.flatten(tensors)
    before = _score(context, rows, published_weights(context, objective))
    after = _score(context, rows, released)
    return Utility(f1_before=before[0], f1_after=after[0], loss_before=before[1], loss_after=after[1])


def _remaining_holdout(context: JobContext, changes: PartChanges) -> tuple[str, ...]:
    rewritten = {part.replaces: part.fitted.path for part in changes.rewritten}
    parts = (part for part in context.parts(PartRole.HOLDOUT) if part.id not in changes.emptied)
    return tuple(rewritten.get(part.id, part.rows_path) for part in parts)


def _score(context: JobContext, rows: Holdout, w: Tensor) -> tuple[float | None, float]:
    """Return micro-F1 in points, or None for regression, and the mean loss."""
    if family_of(context.manifest).classes(context.manifest) is None:
        return None, regression(rows, w).loss
    scores = classification(rows, w)
    return 100 * scores.micro_f1, scores.loss


def check_quality(gate: QualityGate | None, utility: Utility | None, *, mechanism: str) -> Refusal | None:
    """Return why the draw is held, or None if it passes.

    A retrained model is a function of the retained rows alone. Comparing it with the previous version would
    change that, so only the floor applies to it.
    """
    if gate is None or utility is None:
        return None
    reasons = floor_reasons(gate, utility)
    if mechanism != "retrain":
        reasons += comparison_reasons(gate, utility)
    return Refusal(HeldReason.QUALITY_GATE, "; ".join(reasons)) if reasons else None


def floor_reasons(gate: QualityGate, utility: Utility) -> list[str]:
    """Return a reason for each floor that the new version misses."""
    reasons = []
    if gate.min_f1 is not None and utility.f1_after is not None and utility.f1_after < gate.min_f1:
        reasons.append(
            f"F1 is {utility.f1_after:.3g} on the holdout, but the policy requires at least {gate.min_f1:.4g}"
        )
    if gate.max_loss is not None and utility.loss_after is not None and utility.loss_after > gate.max_loss:
        reasons.append(
            f"the loss is {utility.loss_after:.3g} on the holdout, but the policy allows at most "
            f"{gate.max_loss:.4g}"
        )
    return reasons


def comparison_reasons(gate: QualityGate, utility: Utility) -> list[str]:
    """Return a reason for each score that fell too far behind the previous version's."""
    reasons = [
        _comparison_reason("F1 falls", utility.f1_before, utility.f1_after, gate.max_f1_drop),
        _comparison_reason("the loss rises", utility.loss_after, utility.loss_before, gate.max_loss_rise),
    ]
    return [reason for reason in reasons if reason]


def _comparison_reason(what: str, high: float | None, low: float | None, limit: float | None) -> str | None:
    if high is None or low is None or limit is None or high - low <= limit:
        return None
    return f"{what} by {high - low:.2g} on the holdout, but the policy allows at most {limit:.4g}"

"""Stage 1 of an append: the staged parts are checked, the suppressed are filtered, the rest joins the data.

What follows is an ordinary release. It starts from the published version, which those erased before have
shaped, so it is noised and counted for them like any other; its reference is retraining on the rows that
are there afterwards. Its deletion set is empty.
"""

from collections import Counter
from pathlib import Path

from app.db.states import PartRole
from app.db.tables import DatasetPart
from worker.evaluation import shift
from worker.loading import datasets
from worker.loading.families import family_of
from worker.loading.inspection import Expected, Inspection
from worker.pipeline.context import CannotContinue, Context
from worker.pipeline.holdings import bring_in, suppressed_in
from worker.pipeline.resolve import Resolved, Sorting, Swap, has_classes


def resolve_append(context: Context, scratch: Path) -> Resolved:
    problems = bring_in(context)
    staged = [part for part in context.staged() if part.role == PartRole.TRAIN]
    rows = _checked(context, staged, problems)
    sorting = Sorting(context, scratch, [], [])
    kept = [(part.path, part.sha256) for part in context.parts()]
    joined = []
    for part in staged:
        filtered = suppressed_in(context, part.path)
        left = sorting.without(part, filtered) if filtered else (part.path, part.sha256)
        if not filtered:
            joined.append((part.id, rows[part.path]))
        kept += [left] if left else []
    classes: Counter[str] = Counter()
    for path, _ in kept:
        classes += datasets.class_counts(context.services.storage, path, classes=has_classes(context))
    return Resolved(
        requests=0,
        people=0,
        records=0,
        kept=tuple(path for path, _ in kept),
        digests=tuple(digest for _, digest in kept),
        swap=Swap(tuple(sorting.rewritten), tuple(sorting.emptied), appends=True, joined=tuple(joined)),
        shift=shift.measure(classes, {}),
        commitments=(),
    )


def _checked(context: Context, staged: list[DatasetPart], problems: list[str]) -> dict[str, int]:
    """Rows of each staged part, or everything that is wrong with them."""
    manifest = context.manifest
    held = sum(part.rows or 0 for part in context.parts()) * datasets.row_bytes(manifest.width)
    room = context.services.settings.max_dataset_bytes - held
    inspection = Inspection(Expected(manifest.width, family_of(manifest).classes(manifest), most_bytes=room))
    for part in [*context.parts(), *staged]:
        datasets.check_bytes(context.services.storage, part.path, part.sha256)
    for part in staged:
        inspection.add(context.services.storage, f"dataset {part.name}", part.path)
    problems = [*problems, *inspection.problems]
    if not staged and not problems:
        problems = ["nothing waits to be appended"]
    if problems:
        raise CannotContinue("; ".join(problems))
    return inspection.rows

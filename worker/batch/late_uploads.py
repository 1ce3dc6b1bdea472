"""Rows nothing was trained on that came, or stayed, after a batch was resolved.

A part can be sent to a ready model at any time, also while a batch runs or its draw is held. So holdout and
staged parts are searched once more, while the identifiers are still known.
"""

from collections.abc import Collection
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.states import PartRole, SubjectOutcome
from app.db.tables import DatasetPart, Model, TaskSubject
from worker.pipeline.context import Context
from worker.pipeline.publish import swap_parts
from worker.pipeline.resolve import Places, Sorting, Swap, subjects_of
from worker.pipeline.scratch import working_folder


def remove_late_rows(context: Context) -> frozenset[str]:
    """Take the batch's subjects out of every holdout and staged part; the paths that are clean then."""
    subjects = subjects_of(context)[0]
    parts = [part for part in context.holdings() if is_aside(part)]
    if not subjects:
        return frozenset(part.path for part in parts)
    found: set[str] = set()
    with working_folder(context.services.settings, context.token) as scratch:
        sorting = Sorting(context, scratch, [], [])
        for part in parts:
            found |= sorting.aside(part, subjects.keys())
    swap = Swap(tuple(sorting.rewritten), tuple(sorting.emptied))
    if swap.rewritten or swap.emptied:
        with context.writing() as session:
            swap_parts(session, locked_model(context, session), swap)
            _record(session, subjects, found)
    replaced = {*swap.emptied, *(part.replaces for part in swap.rewritten)}
    clean = {part.path for part in parts if part.id not in replaced}
    return frozenset(clean | {part.stored.path for part in swap.rewritten})


def came_meanwhile(session: Session, model_id: UUID, searched: Collection[str]) -> bool:
    """Under the model's lock, which whoever records a part takes as well."""
    parts = session.scalars(
        select(DatasetPart).where(DatasetPart.model_id == model_id, DatasetPart.last_generation.is_(None))
    )
    return any(is_aside(part) and part.path not in searched for part in parts)


def locked_model(context: Context, session: Session) -> Model:
    return session.get_one(Model, context.model.id, with_for_update=True)


def is_aside(part: DatasetPart) -> bool:
    return part.role != PartRole.TRAIN or part.first_generation is None


def _record(session: Session, subjects: Places, found: set[str]) -> None:
    """Whoever was found has no claim to "no data held", even if that was signed before the part came."""
    for subject in found:
        for task_id, ordinal, _ in subjects[subject]:
            row = session.get_one(TaskSubject, (task_id, ordinal))
            if row.outcome == SubjectOutcome.NOT_IN_TRAINING_SET:
                row.outcome = SubjectOutcome.ERASED_OUTSIDE_TRAINING
                row.salt = row.commitment = row.no_data = row.log_index = None

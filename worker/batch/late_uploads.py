"""Rows that nothing was trained on and that arrived, or remained, after a batch was resolved.

A part can be uploaded to a ready model at any time, also while a batch runs or is held. Holdout and staged
parts are therefore searched once more during the purge, while the identifiers are still known.
"""

from collections.abc import Collection
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.db.states import SubjectOutcome
from app.db.tables import DatasetPart, Model, TaskSubject
from worker.batch.resolve import PartRewriter, SubjectEntries, is_untrained, load_subjects
from worker.context import JobContext
from worker.data.scratch import working_folder


def remove_late_rows(context: JobContext) -> frozenset[str]:
    """Remove the batch's people from every holdout and staged part, and return the paths without them."""
    subjects = load_subjects(context)[0]
    parts = [part for part in context.all_parts() if is_untrained(part)]
    if not subjects:
        return frozenset(part.path for part in parts)
    holders: set[str] = set()
    with working_folder(context.services.settings, context.token) as scratch:
        rewriter = PartRewriter(context, scratch)
        for part in parts:
            holders |= rewriter.remove_untrained(part, subjects.keys())
    changes = rewriter.changes()
    if changes.rewritten or changes.emptied:
        with context.writing() as session:
            changes.apply_to(session, locked_model(context, session))
            _withdraw_no_data_claims(session, subjects, holders)
    replaced = {*changes.emptied, *(part.replaces for part in changes.rewritten)}
    clean = {part.path for part in parts if part.id not in replaced}
    return frozenset(clean | {part.stored.path for part in changes.rewritten})


def has_unsearched_part(session: Session, model_id: UUID, searched: Collection[str]) -> bool:
    """Return whether a holdout or staged part has arrived that is not among `searched`.

    Call this with the model locked: recording a part takes the same lock.
    """
    parts = session.scalars(
        select(DatasetPart).where(DatasetPart.model_id == model_id, DatasetPart.last_generation.is_(None))
    )
    return any(is_untrained(part) and part.path not in searched for part in parts)


def locked_model(context: JobContext, session: Session) -> Model:
    """Return the model with its row locked until the transaction ends."""
    return session.get_one(Model, context.model.id, with_for_update=True)


def _withdraw_no_data_claims(session: Session, subjects: SubjectEntries, holders: set[str]) -> None:
    """Withdraw "no data held" for people whose rows were found, even if it was signed before they arrived."""
    for subject in holders:
        for task_id, ordinal, _ in subjects[subject]:
            row = session.get_one(TaskSubject, (task_id, ordinal))
            if row.outcome == SubjectOutcome.NOT_IN_TRAINING_SET:
                row.outcome = SubjectOutcome.ERASED_OUTSIDE_TRAINING
                row.salt = row.commitment = row.no_data = row.log_index = None

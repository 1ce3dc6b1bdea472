"""Rows that nothing was trained on and that arrived, or remained, after a batch was resolved.

A part can be uploaded to a ready model at any time, also while a batch runs or is held. Holdout and staged
parts are therefore searched once more during the purge, while the identifiers are still known.
"""

from collections.abc import Collection
from typing import Any
from uuid import UUID

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from app.db.states import SubjectOutcome
from app.db.tables import DatasetPart, Model, TaskSubject
from worker.batch.resolve import PartRewriter, is_untrained
from worker.batch.subjects import load_identifiers, subject_pages
from worker.context import JobContext
from worker.data.scratch import working_folder


def remove_late_rows(context: JobContext) -> frozenset[str]:
    """Remove the batch's people from every holdout and staged part, and return the paths without them."""
    parts = [part for part in context.all_parts() if is_untrained(part)]
    subjects = load_identifiers(context) if parts else set()
    if not subjects:
        return frozenset(part.path for part in parts)
    holders: set[str] = set()
    with working_folder(context.services.settings, context.token) as scratch:
        rewriter = PartRewriter(context, scratch)
        for part in parts:
            holders |= rewriter.remove_untrained(part, subjects)
    changes = rewriter.changes()
    if changes.rewritten or changes.emptied:
        _withdraw_no_data_claims(context, holders)
        with context.writing() as session:
            changes.apply_to(session, locked_model(context, session))
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


def _withdraw_no_data_claims(context: JobContext, holders: set[str]) -> None:
    """Withdraw "no data held" for people whose rows were found, even if it was signed before they arrived.

    This comes before their rows are removed: an attempt that ends in between finds them again.
    """
    withdrawn: dict[str, Any] = dict.fromkeys(("salt", "commitment", "no_data", "log_index"))
    withdrawn["outcome"] = SubjectOutcome.ERASED_OUTSIDE_TRAINING
    with subject_pages(context, TaskSubject.outcome == SubjectOutcome.NOT_IN_TRAINING_SET) as pages:
        for page in pages:
            found = [entry for entry in page if entry.identifier in holders]
            if found:
                with context.writing() as session:
                    session.execute(
                        update(TaskSubject),
                        [entry.key() | withdrawn for entry in found],
                    )

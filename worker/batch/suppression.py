"""The suppression list: keyed hashes of erased people, by which their rows are kept out of later appends."""

from uuid import UUID

from sqlalchemy import select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from app.core.vault import Vault
from app.db.tables import Suppression
from lethe.certificate.commitment import normalise_identifier
from worker.context import JobContext
from worker.data import datasets

_ROWS_PER_INSERT = 1000


def suppress(context: JobContext, session: Session, subjects: list[str]) -> None:
    """Add these people to the model's suppression list. People already on it stay there."""
    insert = sqlite.insert if session.get_bind().dialect.name == "sqlite" else postgresql.insert
    vault, model_id = context.services.vault, context.model.id
    rows = [{"model_id": model_id, "subject_hash": _hash(vault, model_id, subject)} for subject in subjects]
    for start in range(0, len(rows), _ROWS_PER_INSERT):
        session.execute(insert(Suppression).on_conflict_do_nothing(), rows[start : start + _ROWS_PER_INSERT])


def suppressed_subjects(context: JobContext, path: str) -> set[str]:
    """Return the people in this part who are on the model's suppression list, in any Unicode form.

    Lists written before identifiers were normalised hold the forms that were sent, so both are looked up.
    """
    with context.services.database.reading() as session:
        listed = set(
            session.scalars(select(Suppression.subject_hash).where(Suppression.model_id == context.model.id))
        )
    if not listed:
        return set()
    vault, model_id = context.services.vault, context.model.id
    return {
        subject
        for subject in datasets.subjects(context.services.storage, path)
        if {_hash(vault, model_id, normalise_identifier(subject)), _hash(vault, model_id, subject)} & listed
    }


def _hash(vault: Vault, model_id: UUID, subject: str) -> bytes:
    """Hash an identifier for one model, so that the lists of two models cannot be compared."""
    return vault.keyed_hash(f"{model_id}/{subject}", purpose="suppression list")

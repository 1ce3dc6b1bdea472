"""Signed statements of "no data held", for people of the batch who have no rows.

They are signed and logged while the identifiers are still known. Receipts of erased people need no signature
of their own: they lead to the certificate's.
"""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.core.clock import now
from app.db import log_store
from app.db.states import SubjectOutcome
from app.db.tables import Task, TaskSubject
from lethe.certificate.envelope import Envelope
from lethe.certificate.keys import Signer
from lethe.certificate.receipt import issue_no_data_held
from worker.batch.resolve import SubjectEntry, load_subjects
from worker.context import JobContext
from worker.signing import load_signer

PER_TRANSACTION = 500  # the log's head is locked for the length of a transaction


def sign_no_data_receipts(context: JobContext) -> None:
    """Sign and log a statement for every entry of the batch without rows that has none yet.

    A later attempt continues where an earlier one ended.
    """
    unsigned = _unsigned_entries(context)
    if not unsigned:
        return
    signer = load_signer(context.services.settings)
    entries = [
        (entry, subject)
        for subject, entries in load_subjects(context)[0].items()
        for entry in entries
        if (entry.task_id, entry.ordinal) in unsigned
    ]
    for start in range(0, len(entries), PER_TRANSACTION):
        with context.writing() as session:
            _sign_some(context, session, entries[start : start + PER_TRANSACTION], signer)


def _unsigned_entries(context: JobContext) -> set[tuple[UUID, int]]:
    """Return the keys of the batch's entries without rows that have no statement yet."""
    assert context.batch is not None
    with context.services.database.reading() as session:
        rows = session.execute(
            select(TaskSubject.task_id, TaskSubject.ordinal)
            .join(Task, Task.id == TaskSubject.task_id)
            .where(
                Task.batch_id == context.batch.id,
                TaskSubject.outcome == SubjectOutcome.NOT_IN_TRAINING_SET,
                TaskSubject.no_data.is_(None),
            )
        )
        return {(task_id, ordinal) for task_id, ordinal in rows}


def _sign_some(
    context: JobContext, session: Session, entries: Sequence[tuple[SubjectEntry, str]], signer: Signer
) -> None:
    """Sign statements and append them to the log in one transaction, with one signature of the head."""
    vault, signed = context.services.vault, list[tuple[TaskSubject, Envelope]]()
    for (task_id, ordinal, erasure_id), subject in entries:
        row = session.get_one(TaskSubject, (task_id, ordinal))
        if row.outcome == SubjectOutcome.NOT_IN_TRAINING_SET and row.no_data is None:
            signed.append((row, _statement(context, row, erasure_id, subject, signer)))
    if not signed:
        return
    digests = [envelope.digest for _, envelope in signed]
    first = log_store.append_statements(session, digests, signer, context.services.settings.log_origin)
    for index, (row, envelope) in enumerate(signed, first):
        row.no_data = vault.seal_statement(envelope.raw, task_id=row.task_id, ordinal=row.ordinal)
        row.log_index = index


def _statement(
    context: JobContext, row: TaskSubject, erasure_id: UUID, subject: str, signer: Signer
) -> Envelope:
    assert row.salt is not None
    return issue_no_data_held(
        request_id=str(erasure_id),
        subject_id=subject,
        model=context.model.name,
        model_id=str(context.model.id),
        issued_at=now(),
        signer=signer,
        salt=context.services.vault.open_salt(row.salt, task_id=row.task_id, ordinal=row.ordinal),
    )

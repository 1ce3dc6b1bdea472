"""Receipts of those without rows: "no data held", signed and logged while their identifiers are still known.

The receipts of the erased need no signature of their own: they lead to the certificate's.
"""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy.orm import Session

from app.clock import now
from app.db.states import SubjectOutcome
from app.db.tables import TaskSubject
from certificate.envelope import Envelope
from certificate.keys import Signer
from certificate.receipt import issue_no_data_held
from worker.pipeline import log
from worker.pipeline.context import Context
from worker.pipeline.resolve import subjects_of
from worker.signing import load_signer

_AT_ONCE = 500  # a transaction's share: the log's head is locked meanwhile
Asked = tuple[tuple[UUID, int, UUID], str]


def sign_no_data(context: Context) -> None:
    """Sign and log a statement for every subject of the batch without rows that has none yet.

    A repeated attempt goes on where the one before it ended.
    """
    signer = load_signer(context.services.settings)
    asked = [(place, subject) for subject, places in subjects_of(context)[0].items() for place in places]
    for start in range(0, len(asked), _AT_ONCE):
        with context.writing() as session:
            _sign_some(context, session, asked[start : start + _AT_ONCE], signer)


def _sign_some(context: Context, session: Session, asked: Sequence[Asked], signer: Signer) -> None:
    """Statement, leaf and tree head stand or fall together; the head is signed once for all of them."""
    vault, signed = context.services.vault, list[tuple[TaskSubject, Envelope]]()
    for (task_id, ordinal, erasure_id), subject in asked:
        row = session.get_one(TaskSubject, (task_id, ordinal))
        if row.outcome == SubjectOutcome.NOT_IN_TRAINING_SET and row.no_data is None:
            signed.append((row, _statement(context, row, erasure_id, subject, signer)))
    if not signed:
        return
    digests = [envelope.digest for _, envelope in signed]
    first = log.append_statements(session, digests, signer, context.services.settings.log_origin)
    for place, (row, envelope) in enumerate(signed, first):
        row.no_data = vault.seal_statement(envelope.raw, task_id=row.task_id, ordinal=row.ordinal)
        row.log_index = place


def _statement(
    context: Context, row: TaskSubject, erasure_id: UUID, subject: str, signer: Signer
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

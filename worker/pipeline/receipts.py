"""Receipts of those without rows: "no data held", signed while their identifiers are still known.

The receipts of the erased need no signature of their own: they lead to the certificate's.
"""

from uuid import UUID

from sqlalchemy.orm import Session

from app.clock import now
from app.db.states import SubjectOutcome
from app.db.tables import Model, TaskSubject
from certificate.keys import Signer
from certificate.receipt import issue_no_data_held
from worker.pipeline import log
from worker.pipeline.context import Context
from worker.pipeline.resolve import subjects_of
from worker.signing import announce_key, load_signer

_AT_ONCE = 500  # a transaction's share: the log's head is locked meanwhile


def sign_no_data(context: Context) -> None:
    """For every subject of the batch without rows that has none yet: a repeated attempt goes on."""
    signer, model = load_signer(context.services.settings), context.model
    asked = [(place, subject) for subject, places in subjects_of(context)[0].items() for place in places]
    for start in range(0, len(asked), _AT_ONCE):
        with context.writing() as session:
            for (task_id, ordinal, erasure_id), subject in asked[start : start + _AT_ONCE]:
                row = session.get_one(TaskSubject, (task_id, ordinal))
                if row.outcome == SubjectOutcome.NOT_IN_TRAINING_SET and row.no_data is None:
                    row.no_data = _signed(session, row, erasure_id, subject, model, signer)


def _signed(
    session: Session, row: TaskSubject, erasure_id: UUID, subject: str, model: Model, signer: Signer
) -> bytes:
    """Dated by the log's size, under the lock on its head: the key is then known to be valid there."""
    head = log.lock(session)
    announce_key(session, signer, head.size)
    assert row.salt is not None
    return issue_no_data_held(
        request_id=str(erasure_id),
        subject_id=subject,
        model=model.name,
        model_id=str(model.id),
        log_size=head.size,
        issued_at=now(),
        signer=signer,
        salt=row.salt.hex(),
    ).raw

"""Signed statements of "no data held", for people of the batch who have no rows.

They are signed and logged while the identifiers are still known. Receipts of erased people need no signature
of their own: they lead to the certificate's.
"""

from collections.abc import Mapping, Sequence
from uuid import UUID

from sqlalchemy import update

from app.core.clock import now
from app.core.vault import RowCipher
from app.db import log_store
from app.db.states import SubjectOutcome
from app.db.tables import TaskSubject
from lethe.certificate.envelope import Envelope
from lethe.certificate.keys import Signer
from lethe.certificate.receipt import issue_no_data_held
from worker.batch.subjects import SubjectEntry, receipt_ciphers, subject_pages
from worker.context import JobContext
from worker.signing import load_signer

PER_TRANSACTION = 500  # the log's head is locked for the length of a transaction


def sign_no_data_receipts(context: JobContext) -> None:
    """Sign and log a statement for every entry of the batch without rows that has none yet.

    A later attempt continues where an earlier one ended.
    """
    signer: Signer | None = None
    unsigned = (TaskSubject.outcome == SubjectOutcome.NOT_IN_TRAINING_SET, TaskSubject.no_data.is_(None))
    with subject_pages(context, *unsigned, size=PER_TRANSACTION) as pages:
        for page in pages:
            signer = signer or load_signer(context.services.settings)
            ciphers = receipt_ciphers(context, page)
            signed = [(entry, _statement(context, entry, ciphers[entry.task_id], signer)) for entry in page]
            _log_statements(context, signed, ciphers, signer)


def _log_statements(
    context: JobContext,
    signed: Sequence[tuple[SubjectEntry, Envelope]],
    ciphers: Mapping[UUID, RowCipher],
    signer: Signer,
) -> None:
    """Append statements to the log and store them in one transaction, with one signature of the head."""
    settings = context.services.settings
    rows = [
        entry.key() | {"no_data": ciphers[entry.task_id].seal_statement(envelope.raw, **entry.key())}
        for entry, envelope in signed
    ]
    digests = [envelope.digest for _, envelope in signed]
    with context.writing() as session:
        first = log_store.append_statements(session, digests, signer, settings.log_origin)
        for index, row in enumerate(rows, first):
            row["log_index"] = index
        session.execute(update(TaskSubject), rows)


def _statement(context: JobContext, entry: SubjectEntry, cipher: RowCipher, signer: Signer) -> Envelope:
    assert entry.salt is not None
    return issue_no_data_held(
        request_id=str(entry.erasure_id),
        subject_id=entry.identifier,
        model=context.model.name,
        model_id=str(context.model.id),
        issued_at=now(),
        signer=signer,
        salt=cipher.open_salt(entry.salt, **entry.key()),
    )

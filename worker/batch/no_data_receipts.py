"""Signed statements of "no data held", for people of the batch who have no rows.

They are signed and logged while the identifiers are still known. Receipts of erased people need no signature
of their own: they lead to the certificate's.
"""

from collections.abc import Sequence

from sqlalchemy import update

from app.core.clock import now
from app.db import log_store
from app.db.states import SubjectOutcome
from app.db.tables import TaskSubject
from lethe.certificate.envelope import Envelope
from lethe.certificate.keys import Signer
from lethe.certificate.receipt import issue_no_data_held
from worker.batch.subjects import SubjectEntry, subject_pages
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
            _log_statements(context, [(entry, _statement(context, entry, signer)) for entry in page], signer)


def _log_statements(
    context: JobContext, signed: Sequence[tuple[SubjectEntry, Envelope]], signer: Signer
) -> None:
    """Append statements to the log and store them in one transaction, with one signature of the head."""
    vault, settings = context.services.vault, context.services.settings
    rows = [
        entry.key() | {"no_data": vault.seal_statement(envelope.raw, **entry.key())}
        for entry, envelope in signed
    ]
    digests = [envelope.digest for _, envelope in signed]
    with context.writing() as session:
        first = log_store.append_statements(session, digests, signer, settings.log_origin)
        for index, row in enumerate(rows, first):
            row["log_index"] = index
        session.execute(update(TaskSubject), rows)


def _statement(context: JobContext, entry: SubjectEntry, signer: Signer) -> Envelope:
    assert entry.salt is not None
    return issue_no_data_held(
        request_id=str(entry.erasure_id),
        subject_id=entry.identifier,
        model=context.model.name,
        model_id=str(context.model.id),
        issued_at=now(),
        signer=signer,
        salt=context.services.vault.open_salt(entry.salt, **entry.key()),
    )

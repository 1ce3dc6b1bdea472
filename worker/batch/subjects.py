"""The people of a batch, read from SQL and decrypted page by page.

A batch can name very many people. Only their identifiers are ever held all at once. What is written about
them is written in short transactions, so that other writers do not wait for a large batch.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import ColumnElement, func, select

from app.core.vault import RowCipher, row_of
from app.db.tables import Task, TaskSubject
from lethe.certificate.commitment import normalise_identifier
from worker.context import JobContext

PAGE = 1000
"""The number of people in a page, and so in a transaction."""


class SubjectEntry(NamedTuple):
    """One person of one request: the key of the `TaskSubject` row, and what it takes to write about them."""

    task_id: UUID
    ordinal: int
    erasure_id: UUID
    identifier: str
    """In Unicode normal form C: two forms of one identifier are one person."""
    salt: bytes | None
    """The salt of the commitment, encrypted."""
    receipt_key: bytes | None
    """The key of the task's salts and statements, encrypted."""
    receipt_key_id: UUID | None

    def key(self) -> dict[str, Any]:
        """Return the key of the row, for an update of many rows at once."""
        return {"task_id": self.task_id, "ordinal": self.ordinal}


@contextmanager
def subject_pages(
    context: JobContext, *which: ColumnElement[bool], size: int | None = None
) -> Iterator[Iterator[list[SubjectEntry]]]:
    """Open the entries of the batch whose identifiers are still there, as an iterator of pages.

    `which` selects some entries only. All pages show the state at the beginning, whatever the block writes.
    """
    assert context.batch is not None
    query = (
        select(
            TaskSubject.task_id,
            TaskSubject.ordinal,
            Task.erasure_id,
            TaskSubject.identifier,
            TaskSubject.salt,
            Task.subject_key,
            Task.subject_key_id,
            Task.receipt_key,
            Task.receipt_key_id,
        )
        .join(Task, Task.id == TaskSubject.task_id)
        .where(Task.batch_id == context.batch.id, TaskSubject.identifier.is_not(None), *which)
        .execution_options(yield_per=size or PAGE)
    )
    with context.services.database.reading() as session:
        rows = session.execute(query)
        yield (_decrypted(context, page) for page in rows.partitions())


def _decrypted(context: JobContext, page: Iterable[Any]) -> list[SubjectEntry]:
    """Decrypt the rows of a page. The cipher of each task is opened once."""
    ciphers: dict[UUID, RowCipher] = {}
    entries = []
    for row in page:
        if row.task_id not in ciphers:
            ciphers[row.task_id] = context.services.data_keys.subject_cipher(
                row.task_id, row.subject_key, row.subject_key_id
            )
        bound_to = row_of(row.erasure_id, row.ordinal)
        sent = ciphers[row.task_id].decrypt(row.identifier, row=bound_to)
        # An earlier version stored the identifier as it was sent.
        entries.append(
            SubjectEntry(
                row.task_id,
                row.ordinal,
                row.erasure_id,
                normalise_identifier(sent),
                row.salt,
                row.receipt_key,
                row.receipt_key_id,
            )
        )
    return entries


def receipt_ciphers(context: JobContext, page: Iterable[SubjectEntry]) -> dict[UUID, RowCipher]:
    """Return the ciphers of the receipts of these people's tasks, by task."""
    tasks = {entry.task_id: entry for entry in page}
    open_cipher = context.services.data_keys.receipt_cipher
    return {
        task_id: open_cipher(task_id, entry.receipt_key, entry.receipt_key_id)
        for task_id, entry in tasks.items()
    }


def load_identifiers(context: JobContext) -> set[str]:
    """Decrypt the identifiers of all people of the batch."""
    with subject_pages(context) as pages:
        return {entry.identifier for page in pages for entry in page}


def count_requests(context: JobContext) -> int:
    """Return the number of requests in the batch."""
    assert context.batch is not None
    with context.services.database.reading() as session:
        query = select(func.count()).select_from(Task).where(Task.batch_id == context.batch.id)
        return session.scalar(query) or 0

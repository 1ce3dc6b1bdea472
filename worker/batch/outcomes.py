"""What a batch records about each of its people when it is resolved: outcome, commitment and near matches."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import update

from app.core.vault import RowCipher
from app.db.states import SubjectOutcome
from app.db.tables import Task, TaskSubject
from lethe.certificate.commitment import commit_subject
from worker.batch.subjects import PAGE, SubjectEntry, receipt_ciphers, subject_pages
from worker.batch.task_keys import prepare_receipt_keys
from worker.context import JobContext

NearMatches = Mapping[str, Collection[str]]
"""For an identifier that was not found: similar identifiers of other people."""


@dataclass(frozen=True)
class Findings:
    """Whose rows were found, by identifier: in the training data, in other parts, or only nearly."""

    trained_on: Collection[str]
    elsewhere: Collection[str]
    near: NearMatches

    def outcome(self, identifier: str) -> SubjectOutcome:
        """Return what becomes of this person."""
        if identifier in self.trained_on:
            return SubjectOutcome.ERASED
        if identifier in self.elsewhere:
            return SubjectOutcome.ERASED_OUTSIDE_TRAINING
        return SubjectOutcome.NOT_IN_TRAINING_SET


def record_outcomes(context: JobContext, findings: Findings) -> tuple[bytes, ...]:
    """Record outcome, salt and commitment of every entry, replacing those of an earlier attempt.

    Return the Merkle leaves of the people with training rows. If the attempt ends half way, the next one
    replaces what it recorded: nothing reads it before the draw is recorded.
    """
    prepare_receipt_keys(context)
    leaves: list[bytes] = []
    others: dict[UUID, set[str]] = {}
    with subject_pages(context) as pages:
        for page in pages:
            ciphers = receipt_ciphers(context, page)
            rows = [_committed(ciphers[entry.task_id], entry, findings) for entry in page]
            leaves += (row["leaf"] for row in rows if row["leaf"] is not None)
            tasks = {entry.task_id for entry in page}
            with context.writing() as session:
                session.execute(update(TaskSubject), rows)
                session.execute(update(Task), [{"id": task_id, "near_matches": 0} for task_id in tasks])
            for task_id, people in _near_by_task(page, findings.near):
                others.setdefault(task_id, set()).update(people)
    _record_near_matches(context, others)
    return tuple(leaves)


def _committed(cipher: RowCipher, entry: SubjectEntry, findings: Findings) -> dict[str, Any]:
    """Return the new values of an entry's row, with a fresh salt."""
    outcome = findings.outcome(entry.identifier)
    commitment = commit_subject(request_id=str(entry.erasure_id), subject_id=entry.identifier)
    has_receipt = outcome != SubjectOutcome.ERASED_OUTSIDE_TRAINING
    return entry.key() | {
        "outcome": outcome,
        "identifier_rule": commitment.identifier_rule,
        "salt": cipher.seal_salt(commitment.salt, **entry.key()) if has_receipt else None,
        "commitment": bytes.fromhex(commitment.commitment) if has_receipt else None,
        "leaf": commitment.leaf() if outcome == SubjectOutcome.ERASED else None,
    }


def _near_by_task(page: list[SubjectEntry], near: NearMatches) -> Iterator[tuple[UUID, Collection[str]]]:
    if near:
        yield from ((entry.task_id, near[entry.identifier]) for entry in page if entry.identifier in near)


def _record_near_matches(context: JobContext, others: Mapping[UUID, set[str]]) -> None:
    """Record for each task how many other people its requester may have meant. No identifier is kept."""
    rows = [{"id": task_id, "near_matches": len(people)} for task_id, people in others.items()]
    for start in range(0, len(rows), PAGE):
        with context.writing() as session:
            session.execute(update(Task), rows[start : start + PAGE])

"""Stage 1, resolve: subjects → rows F; the retained parts are written under new names.

Nothing of the present generation is touched: an attempt that dies here leaves only its own folder behind.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from sqlalchemy import select

from app.db.states import SubjectOutcome
from app.db.tables import Task, TaskSubject
from app.storage import Stored
from app.vault import row_of
from certificate.commitment import SubjectCommitment, commit_subject
from worker.evaluation import shift
from worker.loading import datasets
from worker.pipeline.context import Context


@dataclass(frozen=True)
class RewrittenPart:
    replaces: UUID
    stored: Stored
    rows: int


@dataclass(frozen=True)
class Resolved:
    requests: int
    records: int
    kept: tuple[str, ...]
    """Paths of R, in order: untouched parts and rewritten ones."""
    digests: tuple[str, ...]
    rewritten: tuple[RewrittenPart, ...]
    emptied: tuple[UUID, ...]
    shift: shift.Shift
    commitments: tuple[SubjectCommitment, ...]


def resolve(context: Context, scratch: Path) -> Resolved:
    subjects, requests = _subjects(context)
    original: Counter[str] = Counter()
    erased: Counter[str] = Counter()
    kept: list[tuple[str, str]] = []
    rewritten: list[RewrittenPart] = []
    emptied: list[UUID] = []
    held: set[str] = set()
    for part in context.parts():
        found = datasets.holders(context.services.storage, part.path, subjects.keys())
        counts = datasets.class_counts(context.services.storage, part.path)
        original += counts
        if not found:
            kept.append((part.path, part.sha256))
            continue
        held |= found
        erased += datasets.class_counts(context.services.storage, part.path, found)
        target = context.path(f"part{len(rewritten)}.parquet")
        stored = datasets.rewrite_without(context.services.storage, part.path, found, target, scratch)
        rows = datasets.row_count(context.services.storage, target)
        if rows:
            rewritten.append(RewrittenPart(part.id, stored, rows))
            kept.append((stored.path, stored.sha256))
        else:
            emptied.append(part.id)
    return Resolved(
        requests=requests,
        records=erased.total(),
        kept=tuple(path for path, _ in kept),
        digests=tuple(digest for _, digest in kept),
        rewritten=tuple(rewritten),
        emptied=tuple(emptied),
        shift=shift.measure(original, erased),
        commitments=_record_outcomes(context, subjects, held),
    )


Places = dict[str, list[tuple[UUID, int, UUID]]]


def _subjects(context: Context) -> tuple[Places, int]:
    """Each identifier with the (task, ordinal, erasure) rows that ask for it, and the number of requests."""
    assert context.batch is not None
    with context.services.database.reading() as session:
        rows = session.execute(
            select(TaskSubject, Task.erasure_id)
            .join(Task, Task.id == TaskSubject.task_id)
            .where(Task.batch_id == context.batch.id)
            .order_by(TaskSubject.task_id, TaskSubject.ordinal)
        ).all()
    places: Places = {}
    for row, erasure_id in rows:
        if row.identifier is not None:
            identifier = context.services.vault.decrypt(row.identifier, row=row_of(erasure_id, row.ordinal))
            places.setdefault(identifier, []).append((row.task_id, row.ordinal, erasure_id))
    return places, len({row.task_id for row, _ in rows})


def _record_outcomes(context: Context, subjects: Places, held: set[str]) -> tuple[SubjectCommitment, ...]:
    """Outcome, salt and commitment of every subject; a later attempt replaces what an earlier one wrote."""
    commitments: list[SubjectCommitment] = []
    with context.writing() as session:
        for identifier, places in subjects.items():
            outcome = SubjectOutcome.ERASED if identifier in held else SubjectOutcome.NOT_IN_TRAINING_SET
            for task_id, ordinal, erasure_id in places:
                entry = commit_subject(request_id=str(erasure_id), subject_id=identifier)
                row = session.get_one(TaskSubject, (task_id, ordinal))
                row.outcome = outcome
                row.salt, row.commitment = bytes.fromhex(entry.salt), bytes.fromhex(entry.commitment)
                if outcome == SubjectOutcome.ERASED:
                    commitments.append(entry)
    return tuple(commitments)

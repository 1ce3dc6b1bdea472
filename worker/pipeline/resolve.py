"""Stage 1, resolve: subjects → rows F; the retained parts are written under new names.

Nothing of the present generation is touched: an attempt that dies here leaves only its own folder behind.
"""

import shutil
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.clock import new_id
from app.db.states import PartRole, SubjectOutcome
from app.db.tables import DatasetPart, Task, TaskSubject
from app.storage import Storage, StorageError, Stored
from app.vault import row_of
from certificate.commitment import SubjectCommitment, commit_subject, normalise_identifier
from certificate.predicate import SMALLEST_DESCRIBED_SET
from worker.evaluation import shift
from worker.loading import datasets
from worker.loading.families import family_of
from worker.loading.identifiers import folded
from worker.pipeline.context import Context


@dataclass(frozen=True)
class RewrittenPart:
    replaces: UUID
    stored: Stored
    rows: int


@dataclass(frozen=True)
class Swap:
    """How the parts change when this is published."""

    rewritten: tuple[RewrittenPart, ...]
    emptied: tuple[UUID, ...]
    appends: bool = False
    joined: tuple[tuple[UUID, int], ...] = ()
    """Staged parts that join the data as they are, with their rows."""


@dataclass(frozen=True)
class Resolved:
    requests: int
    people: int
    """Distinct identifiers with training rows, however many requests name them."""
    records: int
    kept: tuple[str, ...]
    """Paths of R, in order: untouched parts and rewritten ones; the holdout is not among them."""
    digests: tuple[str, ...]
    swap: Swap
    shift: shift.Shift
    commitments: tuple[SubjectCommitment, ...]

    @property
    def is_a_crowd(self) -> bool:
        """Whether the set has so many people that its classes say nothing of one of them."""
        has_classes = set(self.shift.original) != {datasets.ALL_ROWS}
        return has_classes and self.people >= SMALLEST_DESCRIBED_SET


@dataclass
class Sorting:
    """Parts as they are looked at, one after the other."""

    context: Context
    scratch: Path
    rewritten: list[RewrittenPart]
    emptied: list[UUID]

    def without(self, part: DatasetPart, subjects: Collection[str]) -> tuple[str, str] | None:
        """Path and digest of the part's rows of everyone else; None when there are none."""
        storage = self.context.services.storage
        target = self.context.path(f"part-{new_id().hex}.parquet")  # the purge writes beside the release's
        stored = datasets.rewrite_without(storage, part.path, subjects, target, self.scratch)
        rows = datasets.row_count(storage, target)
        if not rows:
            self.emptied.append(part.id)
            return None
        self.rewritten.append(RewrittenPart(part.id, stored, rows))
        return stored.path, stored.sha256

    def aside(self, part: DatasetPart, subjects: Collection[str]) -> set[str]:
        """Rows nothing was trained on, holdout or staged: they go as well, and are no part of F; whose.

        A staged file that cannot be searched may hold anyone's rows: it is not kept.
        """
        try:
            found = datasets.holders(self.context.services.storage, part.path, subjects)
            if found:
                self.without(part, found)
        except datasets.FAULTS:
            if part.first_generation is not None or not self._damaged(part, subjects):
                raise
            self.emptied.append(part.id)
            return set()
        return found

    def _damaged(self, part: DatasetPart, subjects: Collection[str]) -> bool:
        """Whether the file is at fault and not the storage, whose outages look alike to Arrow.

        Told from a copy that is the file bit for bit; where none can be had, the attempt ends here.
        """
        local = Storage(f"file://{self.scratch.absolute() / 'suspect'}")
        copy = local.write("part", self.context.services.storage.read(part.path))
        if copy.sha256 != part.sha256:
            raise StorageError(f"not the file that was stored: {part.path}")
        try:
            datasets.holders(local, copy.path, subjects)
            datasets.rewrite_without(local, copy.path, subjects, "rewritten", self.scratch)
        except datasets.FAULTS as problem:
            return getattr(problem, "errno", None) is None  # else this machine's disk
        finally:
            shutil.rmtree(self.scratch / "suspect")
        return False


def resolve(context: Context, scratch: Path) -> Resolved:
    """Find the rows of the batch's subjects, and write every part that holds some anew, without them."""
    subjects, requests = subjects_of(context)
    original: Counter[str] = Counter()
    erased: Counter[str] = Counter()
    kept: list[tuple[str, str]] = []
    sorting = Sorting(context, scratch, [], [])
    held: set[str] = set()
    seen: set[str] = set()
    storage, classes = context.services.storage, has_classes(context)
    for part in context.holdings():
        if part.role != PartRole.TRAIN or part.first_generation is None:
            seen |= sorting.aside(part, subjects.keys())
            continue
        datasets.check_bytes(storage, part.path, part.sha256)
        found = datasets.holders(storage, part.path, subjects.keys())
        original += datasets.class_counts(storage, part.path, classes=classes)
        erased += datasets.class_counts(storage, part.path, found, classes=classes) if found else Counter()
        held |= found
        left = sorting.without(part, found) if found else (part.path, part.sha256)
        kept += [left] if left else []
    parts = [part.path for part in context.holdings() if part.id not in sorting.emptied]
    near = _near_matches(context, parts, subjects.keys() - held - seen, held | seen)
    return Resolved(
        requests=requests,
        people=len(held),
        records=erased.total(),
        kept=tuple(path for path, _ in kept),
        digests=tuple(digest for _, digest in kept),
        swap=Swap(tuple(sorting.rewritten), tuple(sorting.emptied)),
        shift=shift.measure(original, erased),
        commitments=_record_outcomes(context, subjects, held, seen, near),
    )


Places = dict[str, list[tuple[UUID, int, UUID]]]


def has_classes(context: Context) -> bool:
    return family_of(context.manifest).classes(context.manifest) is not None


def subjects_of(context: Context) -> tuple[Places, int]:
    """Return each person's identifier with the (task, ordinal, erasure) rows that ask for it, and the
    number of requests. Two forms of one identifier are one person."""
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
            sent = context.services.vault.decrypt(row.identifier, row=row_of(erasure_id, row.ordinal))
            identifier = normalise_identifier(sent)  # it was at intake, unless it waited for an upgrade
            places.setdefault(identifier, []).append((row.task_id, row.ordinal, erasure_id))
    return places, len({row.task_id for row, _ in rows})


Near = dict[str, set[str]]
"""For an identifier that was not found: the identifiers of others that nearly are it."""


def _near_matches(
    context: Context, parts: Collection[str], missing: Collection[str], erased: Collection[str]
) -> Near:
    """Look for people who stay in the data under nearly the identifier of someone who was not found."""
    folds: dict[str, list[str]] = {}
    for identifier in missing:
        folds.setdefault(folded(identifier), []).append(identifier)
    near: Near = {}
    for path in parts if folds else ():
        found = datasets.near_matches(context.services.storage, path, folds.keys())
        for fold, others in found.items():
            for identifier in folds[fold]:
                near.setdefault(identifier, set()).update(others.difference(erased))
    return near


def _record_outcomes(
    context: Context, subjects: Places, held: set[str], seen: set[str], near: Near
) -> tuple[SubjectCommitment, ...]:
    """Write outcome, salt and commitment of every subject, over what an earlier attempt wrote."""
    commitments: list[SubjectCommitment] = []
    vault = context.services.vault
    with context.writing() as session:
        _record_near_matches(session, subjects, near)
        for identifier, places in subjects.items():
            outcome = _outcome(identifier, held, seen)
            for task_id, ordinal, erasure_id in places:
                entry = commit_subject(request_id=str(erasure_id), subject_id=identifier)
                row = session.get_one(TaskSubject, (task_id, ordinal))
                row.outcome, row.identifier_rule = outcome, entry.identifier_rule
                row.salt = vault.seal_salt(entry.salt, task_id=task_id, ordinal=ordinal)
                row.commitment = bytes.fromhex(entry.commitment)
                row.leaf = entry.leaf() if outcome == SubjectOutcome.ERASED else None
                if outcome == SubjectOutcome.ERASED:
                    commitments.append(entry)
                elif outcome == SubjectOutcome.ERASED_OUTSIDE_TRAINING:
                    row.salt = row.commitment = None  # there will be no receipt
    return tuple(commitments)


def _record_near_matches(session: Session, subjects: Places, near: Near) -> None:
    """Write for each task how many people its requester may have meant: a number, and nobody's identifier."""
    others: dict[UUID, set[str]] = {}
    for identifier, places in subjects.items():
        for task_id, _, _ in places:
            others.setdefault(task_id, set()).update(near.get(identifier, ()))
    for task_id, people in others.items():
        session.get_one(Task, task_id).near_matches = len(people)


def _outcome(identifier: str, held: set[str], seen: set[str]) -> SubjectOutcome:
    if identifier in held:
        return SubjectOutcome.ERASED
    if identifier in seen:
        return SubjectOutcome.ERASED_OUTSIDE_TRAINING
    return SubjectOutcome.NOT_IN_TRAINING_SET

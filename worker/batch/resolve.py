"""Stage 1, resolve: find the rows that leave or join the training data, and write the parts that change.

Rewritten parts get new names and the current generation stays untouched. An attempt that dies here leaves
nothing behind but its own folder.
"""

import shutil
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from sqlalchemy.orm import Session

from app.core import logging
from app.core.clock import new_id, now
from app.core.storage import Storage, StorageError, Stored
from app.db import transitions
from app.db.states import EventKind, PartRole
from app.db.tables import DatasetPart, Model
from lethe.certificate.predicate import SMALLEST_DESCRIBED_SET
from worker.batch.outcomes import Findings, record_outcomes
from worker.batch.subjects import count_requests, load_identifiers
from worker.batch.suppression import suppressed_subjects
from worker.context import CannotContinue, JobContext
from worker.data import datasets
from worker.data.families import family_of
from worker.data.identifiers import folded
from worker.data.inspection import Expected, Inspection
from worker.evaluation.class_drift import ClassDrift, measure_class_drift
from worker.features import FeatureBuilder, UnusableRepresentation
from worker.imports import import_parts

log = logging.get_logger("batch")


# -- results of the stage -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class RewrittenPart:
    """A new file that takes the place of a part, with its features file if the model is fitted on one."""

    replaces: UUID
    stored: Stored
    rows: int
    features: Stored | None = None

    @property
    def fitted(self) -> Stored:
        """The file that the model is fitted on."""
        return self.stored if self.features is None else self.features


@dataclass(frozen=True)
class PartChanges:
    """How the model's parts change when the batch is published."""

    rewritten: tuple[RewrittenPart, ...]
    emptied: tuple[UUID, ...]
    """Parts of which no row is left."""
    appends: bool = False
    joined: tuple[tuple[UUID, int], ...] = ()
    """Staged parts that join the training data unchanged, with their numbers of rows."""

    def apply_to(self, session: Session, model: Model) -> None:
        """Replace, end and add parts of the model. A replaced part ends with the previous generation."""
        ended = max(model.generation - 1, 0)
        for new in self.rewritten:
            replaced = session.get(DatasetPart, new.replaces)
            if (
                replaced is None
            ):  # a staged part uploaded again while the batch was held; the purge searches it
                continue
            replaced.last_generation = ended
            stays_staged = replaced.first_generation is None and not self.appends
            session.add(
                DatasetPart(
                    model_id=model.id,
                    name=replaced.name,
                    role=replaced.role,
                    path=new.stored.path,
                    rows=new.rows,
                    sha256=new.stored.sha256,
                    size=new.stored.size,
                    first_generation=None if stays_staged else model.generation,
                    features_path=None if new.features is None else new.features.path,
                    features_sha256=None if new.features is None else new.features.sha256,
                    features_size=None if new.features is None else new.features.size,
                    features_of=None if new.features is None else replaced.features_of,
                )
            )
        for part_id in self.emptied:
            if (part := session.get(DatasetPart, part_id)) is not None:
                part.last_generation = ended
        for part_id, rows in self.joined:
            joining = session.get_one(DatasetPart, part_id)
            joining.first_generation, joining.rows = model.generation, rows


@dataclass(frozen=True)
class Resolution:
    """What the batch does to the training data: the rows that leave, and the parts that remain."""

    requests: int
    people: int
    """Distinct identifiers with training rows, however many requests name them."""
    records: int
    kept: tuple[str, ...]
    """Paths of the files to fit on, in order, rewritten or not. The holdout is not among them."""
    digests: tuple[str, ...]
    changes: PartChanges
    drift: ClassDrift
    leaves: tuple[bytes, ...] = field(default=(), repr=False)
    """The Merkle leaves of the deletion set, one for each pair of request and person."""
    rows: datasets.MemoryMapped | None = field(default=None, repr=False, compare=False)
    """The rows of `kept`, if they were decoded already."""

    @property
    def changes_training_data(self) -> bool:
        """Whether training rows leave or join. If not, the published version stays as it is."""
        if self.changes.appends:
            return bool(self.changes.joined or self.changes.rewritten)
        return self.records > 0

    @property
    def describes_a_crowd(self) -> bool:
        """Whether enough people are erased that their class counts reveal nothing about one of them."""
        has_classes = set(self.drift.original) != {datasets.ALL_ROWS}
        return has_classes and self.people >= SMALLEST_DESCRIBED_SET


# -- rewriting parts ----------------------------------------------------------------------------------------


@dataclass
class PartRewriter:
    """Rewrites parts without some people's rows, and collects the changes that follow."""

    context: JobContext
    scratch: Path
    rewritten: list[RewrittenPart] = field(default_factory=list)
    emptied: list[UUID] = field(default_factory=list)

    def remove(
        self, part: DatasetPart, subjects: Collection[str], fitted_rows: datasets.RowWriter | None = None
    ) -> tuple[str, str] | None:
        """Write the part and its features file without these people's rows.

        Return the path and digest of the file that the model is fitted on, or None if it is empty. The rows
        of that file are also added to `fitted_rows`.
        """
        has_features = part.features_path is not None
        stored = self._rewrite(part.path, subjects, None if has_features else fitted_rows)
        rows = datasets.row_count(self.context.services.storage, stored.path)
        if not rows:
            self.emptied.append(part.id)
            return None
        features = (
            None if part.features_path is None else self._rewrite(part.features_path, subjects, fitted_rows)
        )
        new = RewrittenPart(part.id, stored, rows, features)
        self.rewritten.append(new)
        return new.fitted.path, new.fitted.sha256

    def _rewrite(self, path: str, subjects: Collection[str], copy_to: datasets.RowWriter | None) -> Stored:
        target = self.context.path(f"part-{new_id().hex}.parquet")  # a purge writes to the same folder
        storage = self.context.services.storage
        return datasets.rewrite_without(storage, path, subjects, target, self.scratch, copy_to=copy_to)

    def remove_untrained(self, part: DatasetPart, subjects: Collection[str]) -> set[str]:
        """Remove these people's rows from a holdout or staged part, and return whose rows it held.

        Nothing was trained on such rows, so they are not part of the deletion set. A staged file that cannot
        be searched may hold anyone's rows, so it is dropped.
        """
        storage = self.context.services.storage
        try:
            if part.first_generation is None:  # nobody has inspected it yet
                require_readable_pages(storage, part.path)
            holders = datasets.holders(storage, part.path, subjects)
            if holders:
                self.remove(part, holders)
        except datasets.FAULTS:
            if part.first_generation is not None or not self._is_damaged(part, subjects):
                raise
            self.emptied.append(part.id)
            return set()
        return holders

    def _is_damaged(self, part: DatasetPart, subjects: Collection[str]) -> bool:
        """Return whether the file itself is at fault rather than the storage, whose outages look alike.

        Decided on a local copy with the recorded digest. Without such a copy the attempt ends here.
        """
        local = Storage(f"file://{self.scratch.absolute() / 'suspect'}")
        copy = local.write("part", self.context.services.storage.read(part.path))
        if copy.sha256 != part.sha256:
            raise StorageError(f"not the file that was stored: {part.path}")
        try:
            require_readable_pages(local, copy.path)
            datasets.holders(local, copy.path, subjects)
            datasets.rewrite_without(local, copy.path, subjects, "rewritten", self.scratch)
        except datasets.FAULTS as problem:
            return datasets.is_damage(problem)
        finally:
            shutil.rmtree(self.scratch / "suspect")
        return False

    def changes(self) -> PartChanges:
        """Return the changes collected so far."""
        return PartChanges(tuple(self.rewritten), tuple(self.emptied))


def require_readable_pages(storage: Storage, path: str) -> None:
    """Raise `DatasetError` if a page of a part must not be unpacked."""
    names = (datasets.SUBJECT, datasets.LABEL, datasets.FEATURES, datasets.IMAGE, datasets.TEXT)
    if problems := datasets.page_problems(storage, path, names):
        raise datasets.DatasetError(problems[0])


def is_untrained(part: DatasetPart) -> bool:
    """Return whether nothing was trained on this part: it is a holdout, or waits to be appended."""
    return part.role != PartRole.TRAIN or part.first_generation is None


# -- erasures -----------------------------------------------------------------------------------------------


def resolve(context: JobContext, scratch: Path) -> Resolution:
    """Find the rows of the batch's people, and rewrite every part that holds some without them."""
    subjects = load_identifiers(context)
    rewriter = PartRewriter(context, scratch)
    parts = context.all_parts()
    trained = [part for part in parts if not is_untrained(part)]
    elsewhere: set[str] = set()
    for part in parts:
        if is_untrained(part):
            elsewhere |= rewriter.remove_untrained(part, subjects)
    storage = context.services.storage
    with datasets.checking_bytes(storage, [(part.rows_path, part.rows_sha256) for part in trained]):
        searches = [_search(context, part, subjects) for part in trained]
        kept, rows = _rewrite_trained(context, rewriter, searches)
    trained_on = {holder for search in searches for holder in search.holders}
    erased = _total(search.erased for search in searches)
    remaining = [part.rows_path for part in context.all_parts() if part.id not in rewriter.emptied]
    erased_people = trained_on | elsewhere
    near = _find_near_matches(context, remaining, subjects - erased_people, erased_people)
    resolution = Resolution(
        requests=count_requests(context),
        people=len(trained_on),
        records=erased.total(),
        kept=tuple(path for path, _ in kept),
        digests=tuple(digest for _, digest in kept),
        changes=rewriter.changes(),
        drift=measure_class_drift(_total(search.original for search in searches), erased),
        leaves=record_outcomes(context, Findings(trained_on, elsewhere, near)),
        rows=rows,
    )
    with context.writing() as session:
        _record_class_drift(context, session, resolution)
    return resolution


@dataclass(frozen=True)
class _Search:
    """What one training part holds of the people of a batch. Rows are counted by class."""

    part: DatasetPart
    holders: set[str]
    original: Counter[str]
    erased: Counter[str]

    @property
    def keeps_rows(self) -> bool:
        return self.erased.total() < self.original.total()


def _search(context: JobContext, part: DatasetPart, subjects: Collection[str]) -> _Search:
    """Search a training part for these people's rows."""
    storage, path, classes = context.services.storage, part.rows_path, _has_classes(context)
    holders = datasets.holders(storage, path, subjects)
    original = datasets.class_counts(storage, path, classes=classes)
    erased = datasets.class_counts(storage, path, holders, classes=classes) if holders else Counter[str]()
    return _Search(part, holders, original, erased)


def _total(counts: Iterable[Counter[str]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for count in counts:
        total += count
    return total


FittedFile = tuple[str, str]
"""The path and digest of a file that the model is fitted on."""


def _rewrite_trained(
    context: JobContext, rewriter: PartRewriter, searches: Sequence[_Search]
) -> tuple[list[FittedFile], datasets.MemoryMapped | None]:
    """Rewrite the training parts that hold rows to erase. Return the files to fit on, and their rows.

    The rows are decoded once, for the new files and for the fit. They are returned unless nothing was
    rewritten, no row is left, or several ranks share the fit: then each rank reads its own.
    """
    rewrites = any(search.holders for search in searches)
    remaining = [search for search in searches if search.keeps_rows]
    if context.team.size > 1 or not rewrites or not remaining:
        return _present(_rewrite_one(rewriter, search, None) for search in searches), None
    storage, width = context.services.storage, context.manifest.width
    folder = rewriter.scratch / "retained"
    count = sum(search.original.total() - search.erased.total() for search in remaining)
    datasets.require_room(count * datasets.row_bytes(width), rewriter.scratch)
    dtype = datasets.precision(storage, [search.part.rows_path for search in remaining])
    with datasets.RowWriter(folder, width, dtype) as rows:
        files = _present(_rewrite_one(rewriter, search, rows) for search in searches)
        mapped = rows.map()
    shutil.rmtree(folder)  # the rows stay mapped, and are freed when this process ends
    return files, mapped


def _present(files: Iterable[FittedFile | None]) -> list[FittedFile]:
    return [file for file in files if file is not None]


def _rewrite_one(
    rewriter: PartRewriter, search: _Search, rows: datasets.RowWriter | None
) -> FittedFile | None:
    """Return the file to fit on instead of a training part, or None if no row of it is left.

    Its rows are added to `rows`.
    """
    part = search.part
    if search.holders:
        return rewriter.remove(part, search.holders, rows)
    if rows is not None:
        datasets.copy_rows(rewriter.context.services.storage, part.rows_path, rows)
    return part.rows_path, part.rows_sha256


def _has_classes(context: JobContext) -> bool:
    return family_of(context.manifest).classes(context.manifest) is not None


def _find_near_matches(
    context: JobContext, parts: Collection[str], missing: Collection[str], erased: Collection[str]
) -> dict[str, set[str]]:
    """Find people who stay in the data and whose identifiers resemble one that was not found."""
    folds: dict[str, list[str]] = {}
    for identifier in missing:
        folds.setdefault(folded(identifier), []).append(identifier)
    near: dict[str, set[str]] = {}
    for path in parts if folds else ():
        matches = datasets.near_matches(context.services.storage, path, folds.keys())
        for fold, others in matches.items():
            for identifier in folds[fold]:
                near.setdefault(identifier, set()).update(others.difference(erased))
    return near


def _record_class_drift(context: JobContext, session: Session, resolution: Resolution) -> None:
    """Record the number of erased rows and the class drift for the model's own team.

    The drift of a small set is not recorded. A drift above the policy's `max_kl_alert` raises an alert.
    """
    limit, drift = context.manifest.policy.max_kl_alert, resolution.drift
    batch = context.batch_in(session)
    batch.records = resolution.records
    if not resolution.describes_a_crowd:
        return
    batch.shift = {
        "kl_retained_original": round_divergence(drift.kl_retained_original),
        "kl_original_retained": round_divergence(drift.kl_original_retained),
    }
    if limit is not None and drift.kl_retained_original > limit:
        log.warning("class drift of the deletion set exceeds max_kl_alert")
        transitions.add_event(session, batch.id, EventKind.ALERT, {"max_kl": limit}, now())


def round_divergence(divergence: float | None) -> float | None:
    """Round to three digits. All seventeen would reveal the counts behind the divergence."""
    return None if divergence is None else float(f"{divergence:.2e}")


# -- appends ------------------------------------------------------------------------------------------------


def resolve_append(context: JobContext, scratch: Path) -> Resolution:
    """Check the staged parts, filter people on the suppression list, and add the rest to the training data.

    What follows is an ordinary release with an empty deletion set. It starts from the published version,
    which people erased earlier have shaped, so it is noised and counted for them like any other. Its
    reference is retraining on the rows that are there afterwards.

    Raises `CannotContinue` if the staged parts do not fit the manifest.
    """
    problems = import_parts(context) + _build_features(context, scratch)
    staged = _staged_rows(context)
    rows = _check_staged(context, staged, problems)
    rewriter = PartRewriter(context, scratch)
    kept = [(part.rows_path, part.rows_sha256) for part in context.parts()]
    joined = []
    for part in staged:
        filtered = suppressed_subjects(context, part.rows_path)
        left = rewriter.remove(part, filtered) if filtered else (part.rows_path, part.rows_sha256)
        if not filtered:
            joined.append((part.id, rows[part.rows_path]))
        kept += [left] if left else []
    classes: Counter[str] = Counter()
    for path, _ in kept:
        classes += datasets.class_counts(context.services.storage, path, classes=_has_classes(context))
    return Resolution(
        requests=0,
        people=0,
        records=0,
        kept=tuple(path for path, _ in kept),
        digests=tuple(digest for _, digest in kept),
        changes=PartChanges(
            tuple(rewriter.rewritten), tuple(rewriter.emptied), appends=True, joined=tuple(joined)
        ),
        drift=measure_class_drift(classes, {}),
    )


def _staged_rows(context: JobContext) -> list[DatasetPart]:
    return [part for part in context.staged_parts() if part.role == PartRole.TRAIN]


def _build_features(context: JobContext, scratch: Path) -> list[str]:
    """Compute the features of the staged parts, and return why that is not possible."""
    try:
        builder = FeatureBuilder.open(context, scratch)
        if builder is not None:
            builder.build(_staged_rows(context))
    except UnusableRepresentation as problem:
        return problem.reasons
    return []


def _check_staged(context: JobContext, staged: list[DatasetPart], problems: list[str]) -> dict[str, int]:
    """Return the number of rows of each staged part, or raise with everything that is wrong with them."""
    manifest = context.manifest
    used = sum(part.rows or 0 for part in context.parts()) * datasets.row_bytes(manifest.width)
    room = context.services.settings.max_dataset_bytes - used
    inspection = Inspection(Expected(manifest.width, family_of(manifest).classes(manifest), most_bytes=room))
    if problems and manifest.representation is not None:  # without features there is nothing to inspect
        raise CannotContinue("; ".join(problems))
    for part in [*context.parts(), *staged]:
        datasets.check_bytes(context.services.storage, part.rows_path, part.rows_sha256)
    for part in staged:
        inspection.add(context.services.storage, f"dataset {part.name}", part.rows_path)
    problems = [*problems, *inspection.problems]
    if not staged and not problems:
        problems = ["no dataset part is waiting to be appended; upload or import one first"]
    if problems:
        raise CannotContinue("; ".join(problems))
    return inspection.rows

"""Inspection of every row of a dataset: its problems, and the figures that registration reports.

Problems name a part and a row, never what the row contains.
"""

import hashlib
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from app.core.storage import Storage
from lethe.identifiers import MAX_BYTES, RULE
from worker.data import datasets
from worker.data.datasets import FEATURES, LABEL, SUBJECT
from worker.data.identifiers import normalised, unusable

# Features whose means and variances are this close to 0 and 1 were probably standardised on this data.
STANDARDISED_MEAN, STANDARDISED_VARIANCE = 0.05, 0.1
STANDARDISED_SHARE, STANDARDISED_ROWS = 0.9, 20
# The size of a class with fewer people would reveal the label of a few of them.
DESCRIBED_SUBJECTS = 20


@dataclass(frozen=True)
class Expected:
    """What the manifest says about the rows of a role."""

    width: int
    classes: int | None  # None for real targets
    needs_subject: bool = True
    most_bytes: int | None = None  # the limit on the unpacked size of all parts


class Distinct:
    """Counts distinct people by 64-bit digests of their identifiers. No identifier is kept."""

    def __init__(self) -> None:
        self._merged: npt.NDArray[np.uint64] = np.empty(0, np.uint64)
        self._new: list[bytes] = []

    def add(self, subjects: pa.Array) -> None:
        """Add the people in this column."""
        self._new += (
            hashlib.blake2b(subject.encode(), digest_size=8).digest()
            for subject in pc.unique(normalised(subjects)).to_pylist()
        )
        if len(self._new) > max(len(self._merged), 1 << 16):  # keeps the total cost of sorting at O(n log n)
            self._merge()

    @property
    def seen(self) -> npt.NDArray[np.uint64]:
        """The digests seen so far, sorted and distinct."""
        self._merge()
        return self._merged

    def _merge(self) -> None:
        self._merged = np.union1d(self._merged, np.frombuffer(b"".join(self._new), np.uint64))
        self._new = []

    def shared(self, other: "Distinct") -> int:
        """Return how many people are in both sets."""
        return len(np.intersect1d(self.seen, other.seen, assume_unique=True))


@dataclass
class Inspection:
    """What was found so far in the parts of one role."""

    expected: Expected
    problems: list[str] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)
    classes: Counter[int] = field(default_factory=Counter)
    subjects: Distinct = field(default_factory=Distinct)
    _people: dict[int, set[str]] = field(default_factory=dict)
    """Some people of each class, until there are enough that its size may be shown."""
    _unpacked_bytes: int = 0
    _sum: npt.NDArray[np.float64] | None = None
    _squares: npt.NDArray[np.float64] | None = None

    @property
    def total(self) -> int:
        """The number of rows in all parts."""
        return sum(self.rows.values())

    def add(self, storage: Storage, name: str, path: str) -> None:
        """Inspect one part. `name` is how problems refer to it."""
        expected = self.expected
        problems = datasets.schema_problems(
            storage,
            path,
            width=expected.width,
            real_labels=expected.classes is None,
            needs_subject=expected.needs_subject,
        )
        if problems:
            self.problems += [f"{name}: {problem}" for problem in problems]
            return
        self._unpacked_bytes += datasets.row_count(storage, path) * datasets.row_bytes(expected.width)
        if expected.most_bytes is not None and self._unpacked_bytes > expected.most_bytes:
            self.problems.append(
                f"{name}: too many rows: unpacked, the dataset would exceed max_dataset_bytes"
            )
            return
        with_subjects = datasets.has_subjects(storage, path)
        columns = [LABEL, FEATURES, *([SUBJECT] if with_subjects else [])]
        tally = _Tally()
        problems = []
        try:
            for batch in datasets.batches(storage, path, columns, longest_subject=MAX_BYTES):
                self._inspect(batch, tally)
                tally.rows += batch.num_rows
        except datasets.DatasetError as problem:  # the remaining rows are not read
            problems = [str(problem)]
        except datasets.FAULTS as problem:
            if not datasets.is_damage(problem):
                raise
            reason = "its rows cannot be read: the file is damaged, or its text is not UTF-8"
            self.problems.append(f"{name}: {reason}")
            return
        self.rows[path] = tally.rows
        self.problems += [f"{name}: {problem}" for problem in [*tally.describe(), *problems]]

    def describable(self) -> bool:
        """Return whether every class has enough distinct people that its size may be shown."""
        classes = self.expected.classes
        return classes is not None and all(
            len(self._people.get(c, ())) >= DESCRIBED_SUBJECTS for c in range(classes)
        )

    def looks_standardised(self) -> bool:
        """Return whether the features were probably standardised with constants from this data."""
        if self._sum is None or self._squares is None or self.total < STANDARDISED_ROWS:
            return False
        mean = self._sum / self.total
        variance = self._squares / self.total - mean**2
        varying = variance > 1e-12
        near = (abs(mean) <= STANDARDISED_MEAN) & (abs(variance - 1) <= STANDARDISED_VARIANCE)
        return bool(varying.any()) and float(near[varying].mean()) >= STANDARDISED_SHARE

    def _inspect(self, batch: pa.RecordBatch, tally: "_Tally") -> None:
        if SUBJECT in batch.schema.names:
            column = batch.column(SUBJECT).cast(pa.string())
            tally.note(f"{SUBJECT} is missing", column.is_null())
            tally.note(f"{SUBJECT} {RULE}", unusable(column).fill_null(False))
            self.subjects.add(column.drop_null())
            self._count_people(column, batch.column(LABEL))
        self._inspect_labels(batch.column(LABEL), tally)
        lists = batch.column(FEATURES)
        tally.note("the features are missing", lists.is_null())
        fits = datasets.has_width(lists, self.expected.width).fill_null(False)
        tally.note(datasets.wrong_length(self.expected.width), pc.and_not(lists.is_valid(), fits))
        values = lists.filter(fits).flatten().to_numpy(zero_copy_only=False)
        values = values.reshape(-1, self.expected.width).astype(np.float64)
        bad = ~np.isfinite(values).all(1)
        tally.note("a feature is missing, NaN or infinite", _spread(bad, fits))
        values = values[~bad]
        self._sum = values.sum(0) + (0 if self._sum is None else self._sum)
        self._squares = np.einsum("ij,ij->j", values, values) + (
            0 if self._squares is None else self._squares
        )

    def _count_people(self, subjects: pa.Array, labels: pa.Array) -> None:
        for c in range(self.expected.classes or 0):
            known = self._people.setdefault(c, set())
            if len(known) < DESCRIBED_SUBJECTS:
                own = pc.unique(subjects.filter(pc.equal(labels, c)).drop_null())
                known.update(own[: 2 * DESCRIBED_SUBJECTS].to_pylist())

    def _inspect_labels(self, labels: pa.Array, tally: "_Tally") -> None:
        valid = labels.is_valid()
        tally.note("the label is missing", labels.is_null())
        values = labels.drop_null().to_numpy(zero_copy_only=False)
        if self.expected.classes is None:
            tally.note("the label is NaN or infinite", _spread(~np.isfinite(values), valid))
            return
        outside = (values < 0) | (values >= self.expected.classes)
        tally.note(
            f"the label is not in 0 … {self.expected.classes - 1}", _spread(outside, labels.is_valid())
        )
        self.classes.update(values[~outside].tolist())


@dataclass
class _Tally:
    """The kinds of problem in one part, each with its first row and the number of rows that have it."""

    rows: int = 0
    problems: dict[str, tuple[int, int]] = field(default_factory=dict)

    def note(self, kind: str, bad: npt.NDArray[np.bool_] | pa.Array) -> None:
        """Count the rows of the current batch that have this problem."""
        places = np.flatnonzero(np.asarray(bad))
        if len(places):
            first, count = self.problems.get(kind, (self.rows + int(places[0]), 0))
            self.problems[kind] = (first, count + len(places))

    def describe(self) -> list[str]:
        """Describe each kind of problem with its first row."""
        return [
            f"row {first}: {kind}" + (f" ({count} rows in total)" if count > 1 else "")
            for kind, (first, count) in self.problems.items()
        ]


def _spread(bad: npt.NDArray[np.bool_], selected: pa.Array) -> npt.NDArray[np.bool_]:
    """Spread flags of the selected rows over all rows."""
    flags = np.zeros(len(selected), np.bool_)
    flags[np.asarray(selected)] = bad
    return flags

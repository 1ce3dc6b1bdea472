"""A look at every row of a dataset: what is wrong with it, and what registration reports of it.

Problems name a part and a row, never what the row holds.
"""

import hashlib
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from app.storage import Storage
from worker.loading import datasets
from worker.loading.datasets import FEATURES, LABEL, SUBJECT
from worker.loading.identifiers import normalised

# Means and variances within these of 0 and 1 look like constants computed from the very data.
STANDARDISED_MEAN, STANDARDISED_VARIANCE = 0.05, 0.1
STANDARDISED_SHARE, STANDARDISED_ROWS = 0.9, 20
# With fewer subjects a class's count is a few people's label.
DESCRIBED_SUBJECTS = 20


@dataclass(frozen=True)
class Expected:
    width: int
    classes: int | None  # None: real targets
    needs_subject: bool = True
    most_bytes: int | None = None  # that the rows of all parts may take, laid out


class Distinct:
    """How many different subjects there are, from 64-bit digests: eight bytes each, no identifier kept."""

    def __init__(self) -> None:
        self._merged: npt.NDArray[np.uint64] = np.empty(0, np.uint64)
        self._new: list[bytes] = []

    def add(self, subjects: pa.Array) -> None:
        self._new += (
            hashlib.blake2b(subject.encode(), digest_size=8).digest()
            for subject in pc.unique(normalised(subjects)).to_pylist()
        )
        if len(self._new) > max(len(self._merged), 1 << 16):  # so that sorting stays O(n log n) in all
            self._merge()

    @property
    def seen(self) -> npt.NDArray[np.uint64]:
        """Sorted, each once."""
        self._merge()
        return self._merged

    def _merge(self) -> None:
        self._merged = np.union1d(self._merged, np.frombuffer(b"".join(self._new), np.uint64))
        self._new = []

    def shared(self, other: "Distinct") -> int:
        return len(np.intersect1d(self.seen, other.seen, assume_unique=True))


@dataclass
class Inspection:
    """What was found in the parts of one role, so far."""

    expected: Expected
    problems: list[str] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)
    classes: Counter[int] = field(default_factory=Counter)
    subjects: Distinct = field(default_factory=Distinct)
    _people: dict[int, set[str]] = field(default_factory=dict)
    """Some subjects of each class, until there are enough to tell its size."""
    _claimed: int = 0
    _sum: npt.NDArray[np.float64] | None = None
    _squares: npt.NDArray[np.float64] | None = None

    @property
    def total(self) -> int:
        return sum(self.rows.values())

    def add(self, storage: Storage, name: str, path: str) -> None:
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
        self._claimed += datasets.row_count(storage, path) * datasets.row_bytes(expected.width)
        if expected.most_bytes is not None and self._claimed > expected.most_bytes:
            self.problems.append(f"{name}: too many rows: unpacked they would pass max_dataset_bytes")
            return
        with_subjects = datasets.has_subjects(storage, path)
        columns = [LABEL, FEATURES, *([SUBJECT] if with_subjects else [])]
        tally = _Tally()
        for batch in datasets.batches(storage, path, columns):
            self._look(batch, tally)
            tally.rows += batch.num_rows
        self.rows[path] = tally.rows
        self.problems += [f"{name}: {problem}" for problem in tally.described()]

    def describable(self) -> bool:
        """Whether every class has rows of enough different subjects for its size to be told."""
        classes = self.expected.classes
        return classes is not None and all(
            len(self._people.get(c, ())) >= DESCRIBED_SUBJECTS for c in range(classes)
        )

    def looks_standardised(self) -> bool:
        if self._sum is None or self._squares is None or self.total < STANDARDISED_ROWS:
            return False
        mean = self._sum / self.total
        variance = self._squares / self.total - mean**2
        varying = variance > 1e-12
        near = (abs(mean) <= STANDARDISED_MEAN) & (abs(variance - 1) <= STANDARDISED_VARIANCE)
        return bool(varying.any()) and float(near[varying].mean()) >= STANDARDISED_SHARE

    def _look(self, batch: pa.RecordBatch, tally: "_Tally") -> None:
        if SUBJECT in batch.schema.names:
            column = batch.column(SUBJECT).cast(pa.string())
            tally.note("subject_id is missing", column.is_null())
            self.subjects.add(column.drop_null())
            self._count_people(column, batch.column(LABEL))
        self._look_at_labels(batch.column(LABEL), tally)
        lists = batch.column(FEATURES)
        tally.note("the features are missing", lists.is_null())
        values = lists.drop_null().flatten().to_numpy(zero_copy_only=False)
        values = values.reshape(-1, self.expected.width).astype(np.float64)
        bad = ~np.isfinite(values).all(1)
        tally.note("a feature is missing, NaN or infinite", _spread(bad, lists))
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

    def _look_at_labels(self, labels: pa.Array, tally: "_Tally") -> None:
        tally.note("the label is missing", labels.is_null())
        values = labels.drop_null().to_numpy(zero_copy_only=False)
        if self.expected.classes is None:
            tally.note("the label is NaN or infinite", _spread(~np.isfinite(values), labels))
            return
        outside = (values < 0) | (values >= self.expected.classes)
        tally.note(f"the label is not in 0 … {self.expected.classes - 1}", _spread(outside, labels))
        self.classes.update(values[~outside].tolist())


@dataclass
class _Tally:
    """Each kind of problem with its first row and how many rows have it."""

    rows: int = 0
    found: dict[str, tuple[int, int]] = field(default_factory=dict)

    def note(self, kind: str, bad: npt.NDArray[np.bool_] | pa.Array) -> None:
        places = np.flatnonzero(np.asarray(bad))
        if len(places):
            first, count = self.found.get(kind, (self.rows + int(places[0]), 0))
            self.found[kind] = (first, count + len(places))

    def described(self) -> list[str]:
        return [
            f"row {first}: {kind}" + (f" ({count} rows in all)" if count > 1 else "")
            for kind, (first, count) in self.found.items()
        ]


def _spread(bad: npt.NDArray[np.bool_], column: pa.Array) -> npt.NDArray[np.bool_]:
    """Flags of the rows that are there, laid out over all rows."""
    flags = np.zeros(len(column), np.bool_)
    flags[np.asarray(column.is_valid())] = bad
    return flags

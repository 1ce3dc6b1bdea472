"""Features files: the rows of a part after the model's representation, computed once and stored beside it.

A features file is a dataset part like any other, with the rows of its raw part in the same order. The model
is fitted on the stored numbers, so they are never computed again for rows that stay.

Uploaded graphs and tokenizers run in a process of their own, because they may crash, hang or take all memory.
"""

import hashlib
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from sqlalchemy import delete, select

from app.core import logging
from app.core.clock import new_id
from app.core.storage import CHUNK, Storage, Stored
from app.db import paths
from app.db.states import PartRole
from app.db.tables import DatasetPart, Upload
from lethe.certificate.representation import Representation, VectorInput
from lethe.identifiers import MAX_BYTES
from worker.context import CannotContinue, JobContext, RepresentationFile, RepresentationFiles
from worker.data import datasets
from worker.data.datasets import FEATURES, LABEL, RAW_COLUMN, SUBJECT
from worker.data.families import family_of
from worker.representation.errors import RepresentationError, RowError
from worker.representation.limits import Limits

if TYPE_CHECKING:
    from worker.representation.check import Checked
    from worker.representation.isolated_encoder import IsolatedEncoder

log = logging.get_logger("features")
SAMPLE_ROWS = 8  # real rows that the check for row independence uses besides made-up ones


class UnusableRepresentation(Exception):
    """The representation or the rows it is applied to cannot be used, with every reason for the owner."""

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = list(reasons)


@dataclass
class FeatureBuilder:
    """Computes the features files that are missing. The graph is read, checked and run only if one is."""

    context: JobContext
    scratch: Path
    declaration: Representation
    files: RepresentationFiles
    checked: "Checked | None" = None
    seconds: float = 0.0
    _encoder: "IsolatedEncoder | None" = None

    @classmethod
    def open(cls, context: JobContext, scratch: Path) -> "FeatureBuilder | None":
        """Return a builder for the model's representation, or None if it has none.

        Features of a representation that the manifest no longer declares are deleted.
        """
        declaration = context.manifest.representation
        if declaration is None:
            _delete_features(context)
            return None
        try:
            return cls(context, scratch, declaration, context.representation_files())
        except CannotContinue as problem:
            raise UnusableRepresentation([f"representation: {problem}"]) from None

    @property
    def digest(self) -> str:
        """The digest that names the representation."""
        return self.files.digest(self.declaration)

    def build(self, parts: Sequence[DatasetPart]) -> None:
        """Compute the features of these parts, except where they exist already.

        Each file is recorded as soon as it is complete, so an attempt after a crash repeats at most one part.
        Raises `UnusableRepresentation` with every reason.
        """
        pending = [part for part in parts if part.features_of != self.digest]
        if not pending:
            return
        problems = [problem for part in pending for problem in self._schema_problems(part)]
        problems += self._size_problems(parts)
        if problems:
            raise UnusableRepresentation(problems)
        self.check(pending)
        started, progress = time.monotonic(), _Progress(self.context, self._total_rows(pending))
        try:
            for part in pending:
                progress.start(part.name)
                problems += self._try_part(part, progress)
        finally:
            self._close_encoder()
        self.seconds += time.monotonic() - started
        if problems:
            raise UnusableRepresentation(problems)

    def check(self, parts: Sequence[DatasetPart] = ()) -> "Checked":
        """Check the graph once: that it is safe, fits the manifest and treats each row by itself.

        Some rows of `parts` are among those it is tried on. Raises `UnusableRepresentation`.
        """
        from worker.representation.check import check_representation

        if self.checked is not None:
            return self.checked
        samples = self._sample(parts)
        try:
            checked = check_representation(
                self.declaration,
                self._graph,
                self._tokenizer,
                limits=_LIMITS,
                device=self._device,
                samples=samples,
            )
        except RepresentationError as problem:
            raise UnusableRepresentation(
                [f"representation: {reason}" for reason in problem.reasons]
            ) from None
        width = self.context.manifest.width
        if checked.width != width:
            raise UnusableRepresentation(
                [
                    f"representation: it gives {checked.width} numbers per row, but the manifest's width is "
                    f"{width}; set width to {checked.width}"
                ]
            )
        self.checked = checked
        return checked

    # -- one part ---------------------------------------------------------------------------------------

    def _try_part(self, part: DatasetPart, progress: "_Progress") -> list[str]:
        """Compute one features file, and return why that is not possible."""
        try:
            self._build_part(part, progress)
        except RowError as problem:
            reasons = [f"row {problem.row}: {problem.reason}"]
        except RepresentationError as problem:
            reasons = problem.reasons
        except datasets.DatasetError as problem:
            reasons = [str(problem)]
        else:
            return []
        self._close_encoder()  # it cannot be used after an error
        return [f"{_name(part)}: {reason}" for reason in reasons]

    def _build_part(self, part: DatasetPart, progress: "_Progress") -> None:
        """Write, store and record one features file."""
        storage, model_id = self.context.services.storage, self.context.model.id
        datasets.check_bytes(storage, part.path, part.sha256)
        local = self.scratch / "features.parquet"
        try:
            self._write(part, local, progress)
            with self.context.writing() as session:  # announced like an upload, see worker.imports
                upload = Upload(id=new_id(), model_id=model_id, target=f"features/{part.name}")
                session.add(upload)
            with local.open("rb") as file:
                stored = storage.write(paths.upload(model_id, upload.id), iter(lambda: file.read(CHUNK), b""))
        finally:
            local.unlink(missing_ok=True)
        self._record(part, upload, stored)

    def _write(self, part: DatasetPart, target: Path, progress: "_Progress") -> None:
        column, width, row = RAW_COLUMN[self.declaration.input.kind], self.context.manifest.width, 0
        with self.context.services.storage.open(part.path) as file:
            source = datasets.open_part(file)
            raw = datasets.plain_schema(source.schema_arrow, (column,)).field(column).type
            known = datasets.plain_schema(source.schema_arrow, (SUBJECT, LABEL))
            schema = known.append(pa.field(FEATURES, pa.list_(pa.float32(), width)))
            with datasets.open_writer(target, schema) as writer:
                for batch in self._pieces(source, [*known.names, column]):
                    try:
                        features = self._open_encoder().encode(batch.column(column).cast(raw))
                    except RowError as problem:
                        raise RowError(row + problem.row, problem.reason) from None
                    values = pa.FixedSizeListArray.from_arrays(pa.array(features.reshape(-1)), width)
                    columns = [batch.column(field.name).cast(field.type) for field in known]
                    writer.write_batch(pa.RecordBatch.from_arrays([*columns, values], schema=schema))
                    row += batch.num_rows
                    progress.add(batch.num_rows)

    def _pieces(self, source: pq.ParquetFile, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches whose features are small too. Full runs of the graph stay whole."""
        run = self._batch_rows
        room = datasets.BATCH_BYTES // datasets.row_bytes(self.context.manifest.width)
        rows = max(run, room // run * run)
        batches = datasets.file_batches(source, columns, longest_subject=MAX_BYTES)
        for batch in datasets.undamaged(batches):
            for start in range(0, batch.num_rows, rows):
                yield batch.slice(start, rows)

    def _record(self, part: DatasetPart, upload: Upload, stored: Stored) -> None:
        """Record the file, unless the part was replaced or removed meanwhile."""
        stale: str | None = stored.path
        with self.context.writing() as session:
            session.execute(delete(Upload).where(Upload.id == upload.id))
            current = session.scalar(
                select(DatasetPart)
                .where(DatasetPart.id == part.id, DatasetPart.path == part.path)
                .with_for_update()
            )
            # Registration and advice may both compute the features of a holdout. The first file stays.
            if current is not None and current.features_of != self.digest:
                stale = current.features_path
                current.features_path, current.features_of = stored.path, self.digest
                current.features_sha256, current.features_size = stored.sha256, stored.size
        if stale is not None:
            self.context.services.storage.delete(stale)

    # -- what can be said before the graph runs ---------------------------------------------------------

    def _schema_problems(self, part: DatasetPart) -> list[str]:
        declared, manifest = self.declaration.input, self.context.manifest
        problems = datasets.schema_problems(
            self.context.services.storage,
            part.path,
            width=declared.width if isinstance(declared, VectorInput) else 0,
            real_labels=family_of(manifest).classes(manifest) is None,
            needs_subject=part.role == PartRole.TRAIN,
            column=RAW_COLUMN[declared.kind],
        )
        return [f"{_name(part)}: {problem}" for problem in problems]

    def _size_problems(self, parts: Sequence[DatasetPart]) -> list[str]:
        """Refuse rows whose features would exceed the limit before any time is spent on them."""
        limit = self.context.services.settings.max_dataset_bytes
        problems = []
        for role in PartRole:
            rows = self._total_rows([part for part in parts if part.role == role])
            if rows * datasets.row_bytes(self.context.manifest.width) > limit:
                kind = "dataset" if role == PartRole.TRAIN else "holdout"
                problems.append(f"{kind}: too many rows: their features would exceed max_dataset_bytes")
        return problems

    def _total_rows(self, parts: Sequence[DatasetPart]) -> int:
        total = 0
        for part in parts:
            try:
                total += datasets.row_count(self.context.services.storage, part.path)
            except datasets.FAULTS:  # the schema check reports a file that cannot be read
                continue
        return total

    def _sample(self, parts: Sequence[DatasetPart]) -> pa.Array | None:
        """Return the first rows of the first part that has some."""
        column, storage = RAW_COLUMN[self.declaration.input.kind], self.context.services.storage
        for part in parts:
            with suppress(datasets.DatasetError):  # the part is reported when it is encoded
                for batch in datasets.undamaged(datasets.batches(storage, part.path, [column])):
                    if batch.num_rows:
                        raw = datasets.plain_schema(batch.schema, (column,)).field(column).type
                        return batch.column(column).cast(raw).drop_null()[:SAMPLE_ROWS]
        return None

    # -- the function -----------------------------------------------------------------------------------

    @cached_property
    def _graph(self) -> bytes:
        return _read(self.context.services.storage, self.files.graph)

    @cached_property
    def _tokenizer(self) -> bytes | None:
        file = self.files.tokenizer
        return None if file is None else _read(self.context.services.storage, file)

    @property
    def _batch_rows(self) -> int:
        alone = self.context.row_check() == "rows-run-alone"  # what earlier certificates say stays true
        return 1 if alone else self.check().batch_rows

    def _open_encoder(self) -> "IsolatedEncoder":
        """Return the encoder. Its process is started for the first rows, and again after an error."""
        from worker.representation.isolated_encoder import IsolatedEncoder
        from worker.representation.request import GraphRequest

        if self._encoder is None:
            request = GraphRequest(
                self.declaration,
                self._graph,
                self._tokenizer,
                _LIMITS,
                self._device,
                batch_rows=self._batch_rows,
            )
            self._encoder = IsolatedEncoder(request, width=self.context.manifest.width)
        return self._encoder

    def _close_encoder(self) -> None:
        if self._encoder is not None:
            self._encoder.close()
            self._encoder = None

    @property
    def _device(self) -> str:
        return str(self.context.team.device)


_LIMITS = Limits()


def _delete_features(context: JobContext) -> None:
    """Delete the features files of every part, so that the model is fitted on the rows as they are."""
    with context.writing() as session:
        parts = session.scalars(
            select(DatasetPart)
            .where(DatasetPart.model_id == context.model.id, DatasetPart.features_path.is_not(None))
            .with_for_update()
        ).all()
        stale = [part.features_path for part in parts if part.features_path is not None]
        for part in parts:
            part.features_path = part.features_of = part.features_sha256 = part.features_size = None
    for path in stale:
        context.services.storage.delete(path)


@dataclass
class _Progress:
    """Reports how many rows are done, and when the rest will be."""

    context: JobContext
    total: int
    done: int = 0
    part: str = ""
    started: float = field(default_factory=time.monotonic)

    def start(self, part: str) -> None:
        """Name the part that is being computed."""
        self.part = part
        self.add(0)

    def add(self, rows: int) -> None:
        """Count rows and report, and stop if the attempt has lost its job."""
        self.done += rows
        elapsed = time.monotonic() - self.started
        left = None if not self.done else elapsed / self.done * max(self.total - self.done, 0)
        self.context.progress(
            {
                "step": "features",
                "part": self.part,
                "rows": self.done,
                "total": self.total,
                "percent": round(100 * self.done / max(self.total, 1), 1),
                "eta_seconds": None if left is None else round(left, 1),
            }
        )


def _name(part: DatasetPart) -> str:
    return f"{'dataset' if part.role == PartRole.TRAIN else 'holdout'} {part.name}"


def _read(storage: Storage, file: RepresentationFile) -> bytes:
    """Read a file of the representation, and raise if it is not the one that was recorded."""
    content = b"".join(storage.read(file.path))
    if hashlib.sha256(content).hexdigest() != file.sha256:
        raise UnusableRepresentation(["representation: the stored file is not the one that was uploaded"])
    return content

"""Raw data, graphs and erasures of the representation benchmark, as a customer would send them.

`write_dataset` streams a problem's rows into Parquet parts and draws the biased erasure. `graph_file` and
`tokenizer_file` return the public files of its representation. `compare_with_sklearn` scores scikit-learn's
models beside ours. The settings are in `bench.representation_problems`.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from bench.archives import cache_folder
from bench.measurement import timed
from bench.newsgroups import newsgroups
from bench.representation_problems import KL, SEED, Batch, Problem
from worker.evaluation.biased_deletions import deletion_reaching

ROWS_PER_PART = 50_000


@dataclass(frozen=True, slots=True)
class Dataset:
    """The parts of a problem, and whom to erase."""

    training: list[Path]
    holdout: list[Path]
    rows: int  # for training
    holdout_rows: int
    erase: list[str]  # subjects
    erased_rows: int
    kl: float  # KL(P_R‖P_D) of the groups that the erasure is biased by


def write_dataset(problem: Problem, folder: Path, *, rows_per_part: int = ROWS_PER_PART) -> Dataset:
    """Write training and holdout parts into a folder, one batch in memory at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    schema = _schema(problem)
    with (
        _PartWriter(folder, "train", schema, rows_per_part) as training,
        _PartWriter(folder, "holdout", schema, rows_per_part) as holdout,
    ):
        subjects: list[str] = []
        groups: list[NDArray[np.int64]] = []
        for batch in problem.read():
            (holdout if batch.held_out else training).write(_table(batch, schema))
            if not batch.held_out:
                subjects += batch.subjects
                groups.append(batch.groups)
    owners = np.asarray(subjects)
    deletion = deletion_reaching(np.concatenate(groups), KL, weights=problem.bias, seed=SEED, subjects=owners)
    return Dataset(
        training=training.paths,
        holdout=holdout.paths,
        rows=training.rows,
        holdout_rows=holdout.rows,
        erase=np.unique(owners[deletion.rows]).tolist(),
        erased_rows=len(deletion.rows),
        kl=deletion.drift.kl_retained_original,
    )


def graph_file(problem: Problem) -> Path:
    """Return the ONNX file of the problem's representation, converted the first time and then cached."""
    return _cached_file(f"{problem.graph_name}.onnx", problem.build_graph)


def tokenizer_file(problem: Problem) -> Path | None:
    """Return the `tokenizer.json` of the problem's representation, or None if it takes no text."""
    if problem.build_tokenizer is None:
        return None
    return _cached_file(f"{problem.graph_name}.tokenizer.json", problem.build_tokenizer)


def read_rows(
    paths: list[Path], column: str
) -> tuple[NDArray[np.str_], NDArray[np.int64], NDArray[np.float32]]:
    """Return subjects, labels and the vectors in `column` of some parts."""
    tables = [pq.read_table(path, columns=["subject_id", "label", column]) for path in paths]
    matrices = [
        chunk.flatten().to_numpy().reshape(len(chunk), -1)
        for table in tables
        for chunk in table[column].chunks
    ]
    whole = pa.concat_tables([table.select(["subject_id", "label"]) for table in tables])
    subjects, labels = np.asarray(whole["subject_id"].to_pylist()), whole["label"].to_numpy()
    return subjects, labels, np.concatenate(matrices)


def compare_with_sklearn(problem: Problem, dataset: Dataset) -> dict[str, Any] | None:
    """Score scikit-learn's model of the same problem before and after the erasure, or return None.

    For text it is TF-IDF with logistic regression, for loans logistic regression on the same encodings.
    """
    if problem.name == "newsgroups":
        return _tfidf(dataset)
    if problem.name == "loans":
        return _logistic(problem, dataset)
    return None


class _PartWriter:
    """Writes tables into numbered Parquet files of at most about `rows_per_part` rows."""

    def __init__(self, folder: Path, name: str, schema: pa.Schema, rows_per_part: int) -> None:
        self.paths: list[Path] = []
        self.rows = 0
        self._folder, self._name, self._schema, self._most = folder, name, schema, rows_per_part
        self._writer: pq.ParquetWriter | None = None
        self._room = 0

    def __enter__(self) -> "_PartWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def write(self, table: pa.Table) -> None:
        """Append the rows, beginning new files as needed."""
        while len(table):
            if self._room == 0:
                self._begin()
            assert self._writer is not None
            piece, table = table.slice(0, self._room), table.slice(self._room)
            self._writer.write_table(piece)
            self._room -= len(piece)
            self.rows += len(piece)

    def _begin(self) -> None:
        self._close()
        path = self._folder / f"{self._name}-{len(self.paths):03d}.parquet"
        self.paths.append(path)
        self._writer, self._room = pq.ParquetWriter(path, self._schema), self._most

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _schema(problem: Problem) -> pa.Schema:
    kinds = {"image": pa.binary(), "text": pa.string()}
    declared = problem.representation.input
    kind = pa.list_(pa.float32(), declared.width) if declared.kind == "vector" else kinds[declared.kind]
    return pa.schema([("subject_id", pa.string()), ("label", pa.int64()), (problem.column, kind)])


def _table(batch: Batch, schema: pa.Schema) -> pa.Table:
    kind = schema.field(2).type
    if isinstance(batch.values, np.ndarray):
        flat = pa.array(np.ascontiguousarray(batch.values).ravel())
        values = pa.FixedSizeListArray.from_arrays(flat, kind.list_size)
    else:
        values = pa.array(batch.values, kind)
    return pa.table([pa.array(batch.subjects, pa.string()), pa.array(batch.labels), values], schema=schema)


def _cached_file(name: str, build: Callable[[], bytes]) -> Path:
    """Return a file of the cache, built the first time. Its name says everything that it depends on."""
    path = cache_folder() / "graphs" / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{name}.{os.getpid()}")
        partial.write_bytes(build())
        partial.replace(path)
    return path


def _tfidf(dataset: Dataset) -> dict[str, Any]:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    train, test = newsgroups()
    erased = set(dataset.erase)
    kept = [place for place in range(len(train.texts)) if f"message-{place:05d}" not in erased]
    report: dict[str, Any] = {"model": "TF-IDF and logistic regression, scikit-learn"}
    for moment, places in (("before", range(len(train.texts))), ("retrained", kept)):
        model = make_pipeline(
            TfidfVectorizer(sublinear_tf=True, min_df=2), LogisticRegression(C=10.0, max_iter=300)
        )
        texts, labels = [train.texts[i] for i in places], [train.labels[i] for i in places]
        seconds, _ = timed(partial(model.fit, texts, labels))
        report |= {f"f1_{moment}": 100 * model.score(test.texts, test.labels), f"seconds_{moment}": seconds}
    return report


def _logistic(problem: Problem, dataset: Dataset) -> dict[str, Any]:
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score

    subjects, labels, features = encode_rows(problem, dataset.training)
    _, truth, rows = encode_rows(problem, dataset.holdout)
    kept = ~np.isin(subjects, dataset.erase)
    report: dict[str, Any] = {"model": "logistic regression on the same encodings, scikit-learn"}
    for moment, part in (("before", np.ones(len(labels), dtype=bool)), ("retrained", kept)):
        model = LogisticRegression(C=1 / (problem.lam * int(part.sum())), max_iter=300)
        seconds, _ = timed(partial(model.fit, features[part], labels[part]))
        report |= {
            f"f1_{moment}": 100 * model.score(rows, truth),
            f"auc_{moment}": roc_auc_score(truth, model.decision_function(rows)),
            f"seconds_{moment}": seconds,
        }
    return report


def encode_rows(
    problem: Problem, paths: list[Path]
) -> tuple[NDArray[np.str_], NDArray[np.int64], NDArray[np.float32]]:
    """Return subjects, labels and the features that the graph gives for the raw vectors of some parts."""
    import onnxruntime

    session = onnxruntime.InferenceSession(graph_file(problem), providers=["CPUExecutionProvider"])
    subjects, labels, raw = read_rows(paths, problem.column)
    name = session.get_inputs()[0].name
    pieces: Iterator[NDArray[np.float32]] = (
        session.run(None, {name: raw[start : start + 8192]})[0] for start in range(0, len(raw), 8192)
    )
    return subjects, labels, np.concatenate(list(pieces))

"""Options for CSV files and tables with one column per feature, which become Parquet before they are sent."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from lethe.cli.context import UsageError

SUBJECT, LABEL = "subject_id", "label"
FeatureColumns = Annotated[
    list[str] | None,
    typer.Option(
        "--features",
        metavar="COLUMNS",
        help="Columns with one feature each, such as 'f_*', of a CSV or Parquet file. Repeat it for more.",
    ),
]
SubjectColumn = Annotated[
    str | None,
    typer.Option("--subject", metavar="COLUMN", help=f"Column of the identifiers. Default: {SUBJECT}."),
]
LabelColumn = Annotated[
    str | None, typer.Option("--label", metavar="COLUMN", help=f"Column of the labels. Default: {LABEL}.")
]
ClassNames = Annotated[
    str | None,
    typer.Option(
        "--classes",
        metavar="NAMES",
        help="Labels of the classes 0, 1, … in this order, separated by commas. Default: sorted.",
    ),
]


@dataclass(frozen=True)
class TableOptions:
    """Which columns of a table are what."""

    features: Sequence[str] | None = None
    subject: str | None = None
    label: str | None = None
    classes: str | None = None

    @property
    def given(self) -> bool:
        """Whether any option was passed, so that Parquet files are rewritten too."""
        return any(value is not None for value in (self.features, self.subject, self.label, self.classes))


@contextmanager
def canonical_files(
    data: Sequence[Path], holdout: Sequence[Path], options: TableOptions
) -> Iterator[tuple[dict[str, Path], dict[str, Path]]]:
    """Provide the parts of the training data and of the holdout as the Parquet files that the service reads.

    A Parquet file is used as it is, unless an option says which columns to take. The names of classes that
    the first file defines apply to the others.
    """
    parts, holdout_parts = name_parts(data), name_parts(holdout)
    with TemporaryDirectory(prefix="lethe-") as scratch:
        converter = TableConverter(Path(scratch), options)
        yield (
            {name: converter.convert(path, name) for name, path in parts.items()},
            {name: converter.convert(path, name, holdout=True) for name, path in holdout_parts.items()},
        )


def name_parts(files: Sequence[Path]) -> dict[str, Path]:
    """Name each part of a dataset after its file, with the characters that a part's name may have."""
    parts: dict[str, Path] = {}
    for path in files:
        name = re.sub(r"[^a-z0-9]", "", path.stem.lower())[:32] or "part"
        if name in parts:
            raise UsageError(
                f"{parts[name].name} and {path.name} would both become the part {name}; rename one of them"
            )
        parts[name] = path
    return parts


class TableConverter:
    """Writes tables as the Parquet files that the service reads, into a scratch folder."""

    def __init__(self, scratch: Path, options: TableOptions) -> None:
        self._scratch, self._options = scratch, options
        given = options.classes
        self._classes: tuple[Any, ...] | None = None
        if given is not None:
            self._classes = tuple(word.strip() for word in given.split(","))

    def convert(self, path: Path, name: str, *, holdout: bool = False) -> Path:
        """Return the Parquet file of a table: a new one, or the file itself if nothing has to be changed.

        Raises `BadTable` with the row and the column of the first problem.
        """
        is_csv = path.suffix.lower() == ".csv"
        if not is_csv and not self._options.given:
            return path
        if is_csv and self._options.features is None:
            raise UsageError(
                f"{path} is a CSV file; say which columns are features, such as --features 'f_*'"
            )
        from lethe.integrations.tables import write_parquet

        target = self._scratch / f"{'holdout' if holdout else 'data'}-{name}.parquet"
        written = write_parquet(
            path,
            target,
            subject=self._subject(path, holdout=holdout),
            label=self._options.label or LABEL,
            features=self._options.features or "features",
            classes=self._classes,
        )
        self._classes = self._classes or written.classes
        return target

    def _subject(self, path: Path, *, holdout: bool) -> str | None:
        """Return the column of the identifiers. A holdout may go without."""
        name = self._options.subject or SUBJECT
        if not holdout:
            return name
        from lethe.integrations.errors import require_libraries
        from lethe.integrations.table_sources import open_source

        require_libraries("Reading tables", "pyarrow", "numpy")
        return name if name in open_source(path).names else None

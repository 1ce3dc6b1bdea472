"""The library of representations, which the operator fills, and the commands that do so."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import TypeAdapter, ValidationError
from rich.console import Console
from sqlalchemy import delete
from sqlalchemy.exc import IntegrityError

from app.core.clock import new_id, now
from app.core.settings import Settings
from app.core.storage import CHUNK, StorageError
from app.db import paths
from app.db.representations import (
    RepresentationFiles,
    declaration_of_entry,
    entry_named,
    files_of_entry,
    models_using,
)
from app.db.states import FileKind
from app.db.tables import LibraryRepresentation
from app.services import Services
from app.startup import DataDir, existing_installation, refuse
from lethe.certificate.documents import read_toml_or_json
from lethe.certificate.errors import UnusableInput
from lethe.certificate.records import file_problem, first_problem
from lethe.certificate.representation import LibraryName, Representation

console = Console()
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the entry.")]


class LibraryError(Exception):
    """The library cannot be changed as asked. The message says why and what to do."""


def add_entry(
    services: Services, name: str, declaration: Representation, graph: Path, tokenizer: Path | None
) -> bool:
    """Add an entry to the library. Return False if the same entry is there already.

    An entry is never changed, because models may be using it.
    """
    _check_input(services.settings, name, declaration, graph, tokenizer)
    with services.database.reading() as session:
        present = entry_named(session, name)
    if present is not None:
        _refuse_other(present, declaration, graph, tokenizer)
        return False
    entry_id = new_id()
    folder = paths.library(entry_id)
    try:
        stored = RepresentationFiles(
            graph=services.storage.write(f"{folder}/graph.onnx", _chunks(graph)),
            tokenizer=services.storage.write(f"{folder}/tokenizer.json", _chunks(tokenizer))
            if tokenizer is not None
            else None,
        )
        with services.database.writing() as session:
            session.add(_entry(name, declaration, stored, id=entry_id, created_at=now()))
    except BaseException as problem:
        services.storage.delete(folder)
        if isinstance(problem, IntegrityError):
            raise LibraryError(f"{name} was added by someone else at the same time; try again") from None
        raise
    return True


def remove_entry(services: Services, name: str) -> None:
    """Remove an entry that no model uses, and delete its files."""
    with services.database.writing() as session:
        entry = entry_named(session, name, lock="for removal")
        if entry is None:
            raise LibraryError(
                f"the library has no representation named {name}; to see those it has, run "
                "`lethe representation list`"
            )
        if users := models_using(session, name):
            raise LibraryError(
                f"{name} is in use by {_list_models(users)}; retire these models first, or leave it in place"
            )
        session.execute(delete(LibraryRepresentation).where(LibraryRepresentation.id == entry.id))
    services.storage.delete(paths.library(entry.id))


def read_declaration(path: Path) -> Representation:
    """Read the declaration of a representation from a TOML or JSON file."""
    try:
        document = read_toml_or_json(path)
    except UnusableInput as problem:
        raise LibraryError(str(problem)) from None
    try:
        return Representation.model_validate(document)
    except ValidationError as problem:
        raise LibraryError(
            f"{path} is not the declaration of a representation: {first_problem(problem)}"
        ) from None


def _check_input(
    settings: Settings, name: str, declaration: Representation, graph: Path, tokenizer: Path | None
) -> None:
    try:
        TypeAdapter(LibraryName).validate_python(name)
    except ValidationError:
        raise LibraryError(
            "a name has at most 63 lower-case letters, digits, dots and hyphens, and starts and ends with a "
            "letter or digit"
        ) from None
    if declaration.library is not None:
        raise LibraryError("the declaration of a library's entry names no `library`; remove the field")
    if declaration.needs_tokenizer != (tokenizer is not None):
        raise LibraryError(
            "a representation of text needs --tokenizer"
            if declaration.needs_tokenizer
            else "only a representation of text has a tokenizer; leave out --tokenizer"
        )
    for kind, file in ((FileKind.REPRESENTATION, graph), (FileKind.TOKENIZER, tokenizer)):
        limit = settings.file_limit(kind)
        if file is not None and file.stat().st_size > limit:
            raise LibraryError(
                f"{file} has {file.stat().st_size:,} bytes, more than the {limit:,} that "
                f"LETHE_MAX_{kind.upper()}_BYTES allows"
            )


def _refuse_other(
    present: LibraryRepresentation, declaration: Representation, graph: Path, tokenizer: Path | None
) -> None:
    """Raise `LibraryError` unless the entry is the same as the one to add."""
    files = files_of_entry(present)
    assert files.graph is not None
    differing = [
        what
        for what, equal in (
            ("declaration", declaration == declaration_of_entry(present)),
            ("graph", _sha256(graph) == files.graph.sha256),
            ("tokenizer", _sha256(tokenizer) == (files.tokenizer.sha256 if files.tokenizer else None)),
        )
        if not equal
    ]
    if differing:
        raise LibraryError(
            f"the library has another representation named {present.name}, with a different "
            f"{' and '.join(differing)}; an entry is never changed, so choose another name"
        )


def _entry(
    name: str, declaration: Representation, files: RepresentationFiles, **fields: Any
) -> LibraryRepresentation:
    graph, tokenizer = files.graph, files.tokenizer
    assert graph is not None
    return LibraryRepresentation(
        name=name,
        declaration=declaration.model_dump(mode="json"),
        graph_path=graph.path,
        graph_sha256=graph.sha256,
        graph_size=graph.size,
        tokenizer_path=tokenizer.path if tokenizer else None,
        tokenizer_sha256=tokenizer.sha256 if tokenizer else None,
        tokenizer_size=tokenizer.size if tokenizer else None,
        **fields,
    )


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            yield chunk


def _sha256(path: Path | None) -> str | None:
    if path is None:
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _list_models(names: Sequence[str]) -> str:
    listed = ", ".join(names[:5])
    noun = "the model" if len(names) == 1 else f"{len(names)} models:"
    return f"{noun} {listed}{', …' if len(names) > 5 else ''}"


# Commands


@contextmanager
def _opened(data_dir: Path | None) -> Iterator[Services]:
    """Provide the database and the storage. Errors that the operator can fix are printed as one line."""
    with existing_installation(data_dir) as services:
        try:
            yield services
        except (LibraryError, StorageError) as problem:
            raise refuse(str(problem)) from None
        except OSError as problem:
            raise refuse(file_problem(problem)) from None


def add(
    name: Name,
    manifest: Annotated[
        Path,
        typer.Option(
            exists=True,
            dir_okay=False,
            metavar="FILE",
            help="Declaration of the representation, as TOML or JSON.",
        ),
    ],
    graph: Annotated[Path, typer.Option(exists=True, dir_okay=False, metavar="FILE", help="Graph, as ONNX.")],
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            metavar="FILE",
            help="File tokenizer.json, for a representation of text.",
        ),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Add a representation to the library of this installation. All tenants can use it."""
    with _opened(data_dir) as services:
        added = add_entry(services, name, read_declaration(manifest), graph, tokenizer)
    console.print(
        f"Added {name} to the library."
        if added
        else f"The library already has this representation as {name}.",
        markup=False,
        highlight=False,
    )


def remove(name: Name, data_dir: DataDir = None) -> None:
    """Remove a representation from the library. Refused while a model uses it."""
    with _opened(data_dir) as services:
        remove_entry(services, name)
    console.print(f"Removed {name} from the library.", markup=False, highlight=False)

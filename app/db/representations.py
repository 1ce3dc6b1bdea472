"""Representations in the database: the files of each model's representation, and the library's entries."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal
from uuid import UUID

from sqlalchemy import and_, select
from sqlalchemy.orm import Session

from app.core.storage import Stored
from app.db.states import FileKind, ModelState
from app.db.tables import LibraryRepresentation, Model, ModelFile
from lethe.certificate.representation import Representation

REPRESENTATION_FILES = (FileKind.REPRESENTATION, FileKind.TOKENIZER)


@dataclass(frozen=True)
class RepresentationFiles:
    """The files of a representation. Those that have not arrived yet are None."""

    graph: Stored | None = None
    tokenizer: Stored | None = None

    def digest(self, declaration: Representation) -> str | None:
        """Return the digest of the representation, or None while a file is missing."""
        if self.graph is None or (declaration.needs_tokenizer and self.tokenizer is None):
            return None
        return declaration.digest(self.graph.sha256, self.tokenizer.sha256 if self.tokenizer else None)


def files_of(session: Session, model_id: UUID, declaration: Representation) -> RepresentationFiles:
    """Return the files of a model's representation, its own or those of the library."""
    return files_by_model(session, {model_id: declaration})[model_id]


def files_by_model(
    session: Session, declarations: Mapping[UUID, Representation]
) -> dict[UUID, RepresentationFiles]:
    """Return the files of the representations of several models, in one query.

    The declarations must be those of the models' manifests.
    """
    if not declarations:
        return {}
    named = Model.manifest["representation"]["library"].as_string()
    of_model = and_(ModelFile.model_id == Model.id, ModelFile.kind.in_(REPRESENTATION_FILES))
    rows = session.execute(
        select(Model.id, ModelFile, LibraryRepresentation)
        .outerjoin(ModelFile, of_model)
        .outerjoin(LibraryRepresentation, LibraryRepresentation.name == named)
        .where(Model.id.in_(declarations))
    )
    files: dict[UUID, RepresentationFiles] = dict.fromkeys(declarations, RepresentationFiles())
    for model_id, file, entry in rows:
        if declarations[model_id].library is not None:
            files[model_id] = RepresentationFiles() if entry is None else files_of_entry(entry)
        elif file is not None:
            stored = Stored(file.path, file.sha256, file.size)
            if file.kind == FileKind.REPRESENTATION:
                files[model_id] = replace(files[model_id], graph=stored)
            elif declarations[model_id].needs_tokenizer:
                files[model_id] = replace(files[model_id], tokenizer=stored)
    return files


# The library


def files_of_entry(entry: LibraryRepresentation) -> RepresentationFiles:
    """Return the files of an entry of the library."""
    tokenizer = None
    if entry.tokenizer_path is not None:
        assert entry.tokenizer_sha256 is not None
        assert entry.tokenizer_size is not None
        tokenizer = Stored(entry.tokenizer_path, entry.tokenizer_sha256, entry.tokenizer_size)
    return RepresentationFiles(Stored(entry.graph_path, entry.graph_sha256, entry.graph_size), tokenizer)


def declaration_of_entry(entry: LibraryRepresentation) -> Representation:
    """Return the declaration of an entry. It names no library."""
    return Representation.model_validate(entry.declaration)


def entry_named(
    session: Session, name: str, *, lock: Literal["against removal", "for removal"] | None = None
) -> LibraryRepresentation | None:
    """Return the entry with this name, or None.

    To use the entry, lock it against removal; several transactions may do so at once. To remove it, lock it
    for removal. You then see every use that was committed before.
    """
    query = select(LibraryRepresentation).where(LibraryRepresentation.name == name)
    return session.scalar(query.with_for_update(read=lock == "against removal") if lock else query)


def models_using(session: Session, name: str) -> Sequence[str]:
    """Return the names of the models, of all tenants, that use an entry. Retired models use nothing."""
    named = Model.manifest["representation"]["library"].as_string()
    return session.scalars(
        select(Model.name).where(named == name, Model.state != ModelState.RETIRED).order_by(Model.name)
    ).all()


def differing_fields(declaration: Representation, entry: LibraryRepresentation) -> list[str]:
    """Return the fields in which a declaration differs from an entry of the library, such as `input.shape`.

    The name of the library is not compared.
    """
    mine, theirs = (
        side.model_dump(mode="json", exclude={"library"})
        for side in (declaration, declaration_of_entry(entry))
    )
    fields = [name for name in mine if name != "input" and mine[name] != theirs[name]]
    inputs = mine["input"].keys() | theirs["input"].keys()
    fields += [f"input.{name}" for name in inputs if mine["input"].get(name) != theirs["input"].get(name)]
    return sorted(fields)

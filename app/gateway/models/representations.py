"""What the gateway checks and says about the representation of a model and about the library."""

from collections.abc import Mapping, Sequence
from uuid import UUID

from sqlalchemy import delete
from sqlalchemy.orm import Session

from app.core.storage import Stored
from app.db.manifest import Manifest
from app.db.representations import (
    REPRESENTATION_FILES,
    RepresentationFiles,
    declaration_of_entry,
    differing_fields,
    entry_named,
    files_by_model,
    files_of,
    files_of_entry,
)
from app.db.states import FileKind, ImportRole, ModelState
from app.db.tables import DatasetImport, LibraryRepresentation, Model, ModelFile
from app.gateway.errors import Conflict, Gone, InvalidRequest, NotFound
from app.gateway.models import repository
from app.gateway.models.schemas import LibraryEntryView, RepresentationView
from lethe.certificate.representation import Representation

_NOUNS = {FileKind.REPRESENTATION: "graph", FileKind.TOKENIZER: "tokenizer"}


def check_library(session: Session, declaration: Representation | None) -> None:
    """Check that a manifest that names an entry of the library declares the same as that entry.

    The entry cannot be removed before the transaction ends.
    """
    if declaration is None or declaration.library is None:
        return
    entry = entry_named(session, declaration.library, lock="against removal")
    if entry is None:
        raise InvalidRequest(
            "The library has no representation with the name in representation.library. "
            "GET /v1/representations lists those it has."
        )
    fields = differing_fields(declaration, entry)
    if fields:
        raise InvalidRequest(
            f"The manifest's representation differs from the library's in {', '.join(fields)}. Copy the "
            "declaration from GET /v1/representations/{name}, or leave out `library` and upload your graph.",
            [
                {
                    "at": f"/manifest/representation/{field.replace('.', '/')}",
                    "message": "differs",
                    "type": "library",
                }
                for field in fields
            ],
        )


def check_expected(manifest: Manifest, kind: FileKind) -> None:
    """Raise `Conflict` if the manifest has no use for this file of a representation."""
    declaration = manifest.representation
    if declaration is None:
        raise Conflict(
            "The manifest has no `representation`. Declare one with PATCH /v1/models/{name}, then send the "
            f"{_NOUNS[kind]}."
        )
    if declaration.library is not None:
        raise Conflict(
            f"The manifest uses a representation of the library, which has its {_NOUNS[kind]} already. To "
            "send your own, remove `representation.library` with PATCH /v1/models/{name}."
        )
    if kind == FileKind.TOKENIZER and not declaration.needs_tokenizer:
        raise Conflict(
            f"The representation's input is of the kind {declaration.input.kind}, and only text has a "
            "tokenizer. Send no tokenizer, or change `representation.input` with PATCH /v1/models/{name}."
        )


def check_importable(session: Session, model: Model, kind: FileKind) -> None:
    """Raise `Conflict` if the file is not expected or has arrived already."""
    check_expected(Manifest.model_validate(model.manifest), kind)
    if session.get(ModelFile, (model.id, kind)) is not None:
        raise Conflict(f"The model already has a {_NOUNS[kind]}. Delete it before you import another one.")


def check_complete(session: Session, model: Model) -> None:
    """Raise `Conflict` if a file of the model's representation is neither there nor to be imported."""
    declaration = Manifest.model_validate(model.manifest).representation
    if declaration is None:
        return
    files = files_of(session, model.id, declaration)
    needed: dict[FileKind, Stored | None] = {FileKind.REPRESENTATION: files.graph}
    if declaration.needs_tokenizer:
        needed[FileKind.TOKENIZER] = files.tokenizer
    for kind, file in needed.items():
        if file is None and repository.pending_import(session, model.id, ImportRole(kind)) is None:
            raise Conflict(
                f"The {_NOUNS[kind]} of the representation is missing. Upload it to "
                f"/v1/models/{{name}}/{kind}, import it, or name an entry of the library in "
                "representation.library."
            )


def forget_unused_files(session: Session, model: Model, declaration: Representation | None) -> None:
    """Forget uploads and imports that a changed representation no longer uses.

    Registration deletes the files themselves, because nothing refers to them any more.
    """
    unused = set(REPRESENTATION_FILES)
    if declaration is not None and declaration.library is None:
        unused = set() if declaration.needs_tokenizer else {FileKind.TOKENIZER}
    session.execute(delete(ModelFile).where(ModelFile.model_id == model.id, ModelFile.kind.in_(unused)))
    session.execute(
        delete(DatasetImport).where(DatasetImport.model_id == model.id, DatasetImport.role.in_(unused))
    )


def describe_files(session: Session, manifests: Mapping[UUID, Manifest]) -> dict[UUID, RepresentationView]:
    """Return the representations of the models that have at least one of its files."""
    declarations = {
        model_id: manifest.representation
        for model_id, manifest in manifests.items()
        if manifest.representation is not None
    }
    return {
        model_id: _view(declarations[model_id], files)
        for model_id, files in files_by_model(session, declarations).items()
        if files != RepresentationFiles()
    }


def _view(declaration: Representation, files: RepresentationFiles) -> RepresentationView:
    return RepresentationView(
        digest=files.digest(declaration),
        graph_sha256=files.graph.sha256 if files.graph else None,
        graph_size=files.graph.size if files.graph else None,
        tokenizer_sha256=files.tokenizer.sha256 if files.tokenizer else None,
        tokenizer_size=files.tokenizer.size if files.tokenizer else None,
        library=declaration.library,
    )


def downloadable_file(session: Session, model: Model, kind: FileKind) -> Stored:
    """Return a file of the model's representation, or raise `NotFound` or `Gone`."""
    if model.state == ModelState.RETIRED:
        raise Gone("The model is retired, and its files are deleted.")
    declaration = Manifest.model_validate(model.manifest).representation
    files = RepresentationFiles() if declaration is None else files_of(session, model.id, declaration)
    file = files.graph if kind == FileKind.REPRESENTATION else files.tokenizer
    if file is None:
        raise NotFound(f"The model has no {_NOUNS[kind]}.")
    return file


def get_entry(session: Session, name: str) -> LibraryRepresentation:
    """Return the library's entry with this name, or raise `NotFound`."""
    entry = entry_named(session, name)
    if entry is None:
        raise NotFound("The library has no representation with this name.")
    return entry


def describe_entries(entries: Sequence[LibraryRepresentation]) -> list[LibraryEntryView]:
    """Return entries of the library as every tenant sees them."""
    return [_describe_entry(entry) for entry in entries]


def _describe_entry(entry: LibraryRepresentation) -> LibraryEntryView:
    declaration = declaration_of_entry(entry)
    digest = files_of_entry(entry).digest(declaration)
    assert digest is not None
    return LibraryEntryView(
        name=entry.name,
        declaration=declaration,
        digest=digest,
        graph_sha256=entry.graph_sha256,
        graph_size=entry.graph_size,
        tokenizer_sha256=entry.tokenizer_sha256,
        tokenizer_size=entry.tokenizer_size,
        created_at=entry.created_at,
    )

"""The endpoints for the library of representations, and manifests that name one of its entries."""

from collections.abc import Mapping
from typing import Any

from lethe.client.endpoints import EndpointGroup, path
from lethe.client.operations import D, ItemStream, Procedure, listing, operation
from lethe.client.responses import LibraryEntry

_DECLARED = frozenset({"input", "outputs", "origin", "licence"})


class Representations(EndpointGroup[D]):
    """Read the library of representations. The operator of the service adds them."""

    @listing
    def list(self, *, limit: int | None = None) -> ItemStream[LibraryEntry]:
        """Iterate over the library, newest first."""
        return self._get_pages("/v1/representations", LibraryEntry, limit)

    @operation
    def get(self, name: str) -> Procedure[LibraryEntry]:
        """Return one representation of the library."""
        return self._get(entry_path(name), LibraryEntry)


def entry_path(name: str) -> str:
    """Return the path of an entry of the library."""
    return path("representations", name)


def unfinished_library(manifest: Mapping[str, Any]) -> str | None:
    """Return the entry of the library that a manifest names without repeating its declaration, or None.

    >>> unfinished_library({"representation": {"library": "minilm"}})
    'minilm'
    >>> unfinished_library({"representation": None}) is None
    True
    """
    representation = manifest.get("representation")
    if not isinstance(representation, Mapping) or representation.keys() >= _DECLARED:
        return None
    name = representation.get("library")
    return name if isinstance(name, str) else None


def complete_manifest(manifest: Mapping[str, Any], entry: LibraryEntry) -> dict[str, Any]:
    """Return the manifest with the declaration of the library's entry filled in.

    Fields that the manifest has stay as they are. The service then says in what they differ.
    """
    declaration = entry.declaration.model_dump(mode="json", exclude={"library"})
    return {**manifest, "representation": declaration | dict(manifest["representation"])}

"""Registration: uploads the files of a model and waits until the service has validated it."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lethe.client.errors import Conflict, NotFound
from lethe.client.models import replacement_patch
from lethe.client.responses import Model

if TYPE_CHECKING:
    from lethe.client.api import Lethe

_FOLDERS = {"train": "dataset", "holdout": "holdout"}


def register_files(
    client: "Lethe",
    name: str,
    manifest: Mapping[str, Any],
    *,
    data: Path,
    holdout: Path | None,
    representation: bytes | None = None,
    anchor: bytes | None = None,
    wait: bool,
    timeout: float | None,
) -> Model:
    """Create a model, upload its files and start its validation. With `wait`, return it when it is ready.

    A model of this name that was rejected, or whose upload was interrupted, is replaced. Raise `Conflict` if
    the model is registered already, and `ModelRejected` with every reason if the service rejects it.
    """
    _create_or_replace(client, name, manifest)
    if representation is not None:
        client.models.upload_representation(name, representation)
    if anchor is not None:
        client.models.upload_anchor(name, anchor)
    if holdout is not None:
        client.models.upload_holdout(name, "holdout", holdout)
    client.models.upload_part(name, "part0", data)
    model = client.models.validate(name)
    return client.models.wait_ready(name, timeout=timeout) if wait else model


def _create_or_replace(client: "Lethe", name: str, manifest: Mapping[str, Any]) -> None:
    """Create a model. One that was never registered gets this manifest instead, and loses its files."""
    try:
        client.models.create(name, manifest)
    except Conflict:
        current = client.models.get(name)
        if current.state not in ("uploading", "rejected"):
            raise
        old = current.manifest.model_dump(mode="json", by_alias=True)
        client.models.patch(name, replacement_patch(old, manifest))
        files = [f"{_FOLDERS[part.role]}/{part.part}" for part in client.models.parts(name)]
        for file in [*files, "weights", "anchor"]:
            with suppress(NotFound):
                client.models.delete_file(name, file)

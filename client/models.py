"""Models: described, given data, validated, changed, retired."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from client.answers import Appending, Flushed, Holding, Ledger, Model, Transfer, Uploaded, Version
from client.download import download
from client.errors import ModelRejected
from client.flow import D, Flow, Items, Request, listing, operation
from client.requests import answered
from client.resource import Noun, at, until
from client.upload import Source, Tell, upload

Parts = tuple[Holding, ...]


class Models(Noun[D]):
    @operation
    def create(self, name: str, manifest: Mapping[str, Any]) -> Flow[Model]:
        """Describe a model; then upload its data, and validate it."""
        return self._post("/v1/models", Model, {"name": name, "manifest": dict(manifest)})

    @operation
    def show(self, name: str) -> Flow[Model]:
        return self._get(at("models", name), Model)

    @listing
    def list(self, *, most: int | None = None) -> Items[Model]:
        """Newest first."""
        return self._pages("/v1/models", Model, most)

    @operation
    def patch(self, name: str, change: Mapping[str, Any]) -> Flow[Model]:
        """Change the manifest by JSON Merge Patch; once registered, its policy only."""
        return self._take(Request("PATCH", at("models", name), json=dict(change)), Model)

    @operation
    def retire(self, name: str) -> Flow[Model]:
        """Delete data and checkpoints; certificates stay."""
        return self._take(Request("DELETE", at("models", name)), Model)

    @operation
    def holdings(self, name: str) -> Flow[Parts]:
        """The parts of its dataset."""
        return self._get(at("models", name, "dataset"), tuple[Holding, ...])

    @operation
    def upload_part(
        self, name: str, part: str, source: Source, *, tell: Tell | None = None
    ) -> Flow[Uploaded]:
        """Send Parquet with the columns subject_id, label and features; go on with it if it broke off."""
        return upload(at("models", name, "dataset", part), source, retry=self._retry, tell=tell)

    @operation
    def upload_holdout(
        self, name: str, part: str, source: Source, *, tell: Tell | None = None
    ) -> Flow[Uploaded]:
        """Send rows for evaluation only."""
        return upload(at("models", name, "holdout", part), source, retry=self._retry, tell=tell)

    @operation
    def upload_weights(self, name: str, source: Source, *, tell: Tell | None = None) -> Flow[Uploaded]:
        """Send trained weights, as safetensors; without them the service trains the model."""
        return upload(at("models", name, "weights"), source, retry=self._retry, tell=tell)

    @operation
    def upload_anchor(self, name: str, source: Source, *, tell: Tell | None = None) -> Flow[Uploaded]:
        """Send the anchor: a public point shaped like the weights; without it, zero."""
        return upload(at("models", name, "anchor"), source, retry=self._retry, tell=tell)

    @operation
    def uploaded(self, name: str, place: str) -> Flow[Transfer]:
        """How much is there of `weights`, `anchor`, `dataset/{part}` or `holdout/{part}`."""
        return self._get(at("models", name, *place.split("/")), Transfer)

    @operation
    def remove(self, name: str, place: str) -> Flow[None]:
        """Take back a file that is not in use yet."""
        yield from answered(Request("DELETE", at("models", name, *place.split("/"))), self._retry)

    @operation
    def import_part(self, name: str, part: str, uri: str, *, holdout: bool = False) -> Flow[None]:
        """Have the worker copy a part from a storage URI that the operator allowed."""
        where = at("models", name, "holdout" if holdout else "dataset", "import")
        yield from answered(Request("POST", where, json={"part": part, "uri": uri}), self._retry)

    @operation
    def validate(self, name: str) -> Flow[Model]:
        """Start registration; `wait_ready` waits for its end."""
        return self._post(at("models", name, "validate"), Model)

    @operation
    def wait_ready(
        self, name: str, *, timeout: float | None = None, tell: Callable[[Model], object] | None = None
    ) -> Flow[Model]:
        """The model once it is ready; ModelRejected has the reasons if it is not to be."""
        model = yield from until(
            lambda: self._get(at("models", name), Model),
            lambda found: found.state != "validating",
            timeout=timeout,
            tell=tell,
        )
        if model.state == "rejected":
            raise ModelRejected(name, model.reasons)
        return model

    @operation
    def append(self, name: str) -> Flow[Appending]:
        """Add the parts sent since registration, and publish the next version; follow its batch."""
        return self._post(at("models", name, "append"), Appending)

    @operation
    def flush(self, name: str, *, force: bool = False) -> Flow[Flushed]:
        """Seal what waits now; with fewer people than the policy's `min_batch_subjects` only by `force`."""
        return self._post(at("models", name, "flush"), Flushed, **({"force": "true"} if force else {}))

    @operation
    def ledger(self, name: str) -> Flow[Ledger]:
        """What each release spent, and what is left."""
        return self._get(at("models", name, "ledger"), Ledger)


class Versions(Noun[D]):
    @operation
    def list(self, model: str) -> Flow[tuple[Version, ...]]:
        """Newest first."""
        return self._get(at("models", model, "versions"), tuple[Version, ...])

    @operation
    def download(
        self, model: str, to: Path | str, *, version: int | str = "current", tell: Tell | None = None
    ) -> Flow[Path]:
        """The weights into the file `to`. Broken off, call it again: it goes on where it was."""
        url = at("models", model, "versions", version, "checkpoint")
        return download(url, Path(to), retry=self._retry, tell=tell)

    @operation
    def signature(self, model: str, *, version: int | str = "current") -> Flow[bytes]:
        """`model.sig`, for the OpenSSF `model_signing` tool."""
        return self._bytes(at("models", model, "versions", version, "signature"))

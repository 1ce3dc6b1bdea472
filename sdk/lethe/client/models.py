"""The endpoints for models, their versions and their evaluations."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lethe.client.endpoints import EndpointGroup, Id, path
from lethe.client.errors import ModelRejected
from lethe.client.operations import D, ItemStream, Procedure, Request, listing, operation
from lethe.client.representations import complete_manifest, entry_path, unfinished_library
from lethe.client.responses import (
    Advice,
    AppendResult,
    DatasetPart,
    Evaluation,
    FlushResult,
    Ledger,
    LibraryEntry,
    Model,
    UploadedFile,
    UploadStatus,
    Version,
)
from lethe.client.transfers import OnProgress, Source, download, upload
from lethe.client.transport import exchange

Parts = tuple[DatasetPart, ...]


class Models(EndpointGroup[D]):
    """Register models, upload their data, and change, flush or retire them."""

    @operation
    def create(self, name: str, manifest: Mapping[str, Any]) -> Procedure[Model]:
        """Create a model from its manifest. Next, upload its data and call `validate`.

        If `representation` names an entry of the library, the rest of it may be left out.
        """
        complete = yield from self._complete(manifest)
        return (yield from self._post("/v1/models", Model, {"name": name, "manifest": complete}))

    @operation
    def get(self, name: str) -> Procedure[Model]:
        """Return one model."""
        return self._get(path("models", name), Model)

    @listing
    def list(self, *, limit: int | None = None) -> ItemStream[Model]:
        """Iterate over the models, newest first."""
        return self._get_pages("/v1/models", Model, limit)

    @operation
    def patch(self, name: str, change: Mapping[str, Any]) -> Procedure[Model]:
        """Change the manifest with a JSON Merge Patch. A registered model can only change its policy."""
        complete = yield from self._complete(change)
        return (yield from self._request(Request("PATCH", path("models", name), json=complete), Model))

    def _complete(self, manifest: Mapping[str, Any]) -> Procedure[dict[str, Any]]:
        """Fill in the declaration of a representation of the library."""
        library = unfinished_library(manifest)
        if library is None:
            return dict(manifest)
        entry = yield from self._get(entry_path(library), LibraryEntry)
        return complete_manifest(manifest, entry)

    @operation
    def retire(self, name: str) -> Procedure[Model]:
        """Delete the model's data and weights. Its certificates stay."""
        return self._request(Request("DELETE", path("models", name)), Model)

    @operation
    def parts(self, name: str) -> Procedure[Parts]:
        """Return the parts of the model's training data and holdout."""
        return self._get(path("models", name, "dataset"), tuple[DatasetPart, ...])

    @operation
    def upload_part(
        self, name: str, part: str, source: Source, *, on_progress: OnProgress | None = None
    ) -> Procedure[UploadedFile]:
        """Upload training data: Parquet with the columns subject_id, label and features.

        Call it again to resume an upload that was interrupted.
        """
        url = path("models", name, "dataset", part)
        return upload(url, source, retry=self._retry, on_progress=on_progress)

    @operation
    def upload_holdout(
        self, name: str, part: str, source: Source, *, on_progress: OnProgress | None = None
    ) -> Procedure[UploadedFile]:
        """Upload rows that are used for evaluation only."""
        url = path("models", name, "holdout", part)
        return upload(url, source, retry=self._retry, on_progress=on_progress)

    @operation
    def upload_weights(
        self, name: str, source: Source, *, on_progress: OnProgress | None = None
    ) -> Procedure[UploadedFile]:
        """Upload trained weights as safetensors. Without them, the service trains the model."""
        return upload(path("models", name, "weights"), source, retry=self._retry, on_progress=on_progress)

    @operation
    def upload_anchor(
        self, name: str, source: Source, *, on_progress: OnProgress | None = None
    ) -> Procedure[UploadedFile]:
        """Upload the anchor, a public point with the shape of the weights. Without it, the anchor is zero."""
        return upload(path("models", name, "anchor"), source, retry=self._retry, on_progress=on_progress)

    @operation
    def upload_representation(
        self, name: str, source: Source, *, on_progress: OnProgress | None = None
    ) -> Procedure[UploadedFile]:
        """Upload the graph of the representation that the manifest declares, as ONNX."""
        url = path("models", name, "representation")
        return upload(url, source, retry=self._retry, on_progress=on_progress)

    @operation
    def upload_tokenizer(
        self, name: str, source: Source, *, on_progress: OnProgress | None = None
    ) -> Procedure[UploadedFile]:
        """Upload the `tokenizer.json` of a representation of text."""
        return upload(path("models", name, "tokenizer"), source, retry=self._retry, on_progress=on_progress)

    @operation
    def upload_status(self, name: str, file: str) -> Procedure[UploadStatus]:
        """Return how much of a file has arrived.

        `file` is `weights`, `anchor`, `representation`, `tokenizer`, `dataset/{part}` or `holdout/{part}`.
        """
        return self._get(path("models", name, *file.split("/")), UploadStatus)

    @operation
    def delete_file(self, name: str, file: str) -> Procedure[None]:
        """Delete an uploaded file that is not in use yet; `file` as for `upload_status`."""
        yield from exchange(Request("DELETE", path("models", name, *file.split("/"))), self._retry)

    @operation
    def import_part(self, name: str, part: str, uri: str, *, holdout: bool = False) -> Procedure[None]:
        """Let the worker copy a part from a storage URI. The operator must have allowed that place."""
        url = path("models", name, "holdout" if holdout else "dataset", "import")
        yield from exchange(Request("POST", url, json={"part": part, "uri": uri}), self._retry)

    @operation
    def import_representation(self, name: str, uri: str) -> Procedure[None]:
        """Let the worker copy the graph from a storage URI. The operator must have allowed that place."""
        url = path("models", name, "representation", "import")
        yield from exchange(Request("POST", url, json={"uri": uri}), self._retry)

    @operation
    def import_tokenizer(self, name: str, uri: str) -> Procedure[None]:
        """Let the worker copy the tokenizer from a storage URI. The operator must have allowed that place."""
        url = path("models", name, "tokenizer", "import")
        yield from exchange(Request("POST", url, json={"uri": uri}), self._retry)

    @operation
    def download_representation(
        self, name: str, to: Path | str, *, on_progress: OnProgress | None = None
    ) -> Procedure[Path]:
        """Download the graph of the model's representation, its own or the library's, into the file `to`.

        Call it again to resume an interrupted download.
        """
        url = path("models", name, "representation", "content")
        return download(url, Path(to), retry=self._retry, on_progress=on_progress)

    @operation
    def download_tokenizer(
        self, name: str, to: Path | str, *, on_progress: OnProgress | None = None
    ) -> Procedure[Path]:
        """Download the `tokenizer.json` of the model's representation into the file `to`."""
        url = path("models", name, "tokenizer", "content")
        return download(url, Path(to), retry=self._retry, on_progress=on_progress)

    @operation
    def advise(self, name: str, *, timeout: float | None = None) -> Procedure[Advice]:
        """Measure what to expect of several values of λ and Δ*, wait for the result and return it.

        Only holdout rows of people without training rows are used. A choice of λ or Δ* made after looking at
        rows that can be erased voids the assurance on the model's certificates.
        """
        started = yield from self._post(path("models", name, "advice"), Advice)
        return (
            yield from self._watch(
                path("models", name, "advice", started.id),
                Advice,
                lambda report: report.ended,
                timeout=timeout,
            )
        )

    @operation
    def get_advice(self, name: str, advice_id: Id) -> Procedure[Advice]:
        """Return advice that was measured earlier."""
        return self._get(path("models", name, "advice", advice_id), Advice)

    @listing
    def list_advice(self, name: str, *, limit: int | None = None) -> ItemStream[Advice]:
        """Iterate over the advice on a model, newest first."""
        return self._get_pages(path("models", name, "advice"), Advice, limit)

    @operation
    def validate(self, name: str) -> Procedure[Model]:
        """Start registration. Call `wait_ready` to wait for its end."""
        return self._post(path("models", name, "validate"), Model)

    @operation
    def wait_ready(
        self, name: str, *, timeout: float | None = None, on_change: Callable[[Model], object] | None = None
    ) -> Procedure[Model]:
        """Wait until the model is ready, and return it. Raises `ModelRejected` with the reasons."""
        model = yield from self._watch(
            path("models", name),
            Model,
            lambda model: model.state != "validating",
            timeout=timeout,
            on_change=on_change,
        )
        if model.state == "rejected":
            raise ModelRejected(name, model.reasons)
        return model

    @operation
    def append(self, name: str) -> Procedure[AppendResult]:
        """Add the parts uploaded since registration and publish the next version, in a batch."""
        return self._post(path("models", name, "append"), AppendResult)

    @operation
    def flush(self, name: str, *, force: bool = False) -> Procedure[FlushResult]:
        """Seal a batch of everyone who is waiting now.

        If fewer people are waiting than the policy's `min_batch_subjects`, the service refuses unless `force`
        is set.
        """
        params = {"force": "true"} if force else {}
        return self._post(path("models", name, "flush"), FlushResult, **params)

    @operation
    def ledger(self, name: str) -> Procedure[Ledger]:
        """Return the privacy loss of each release, and how much the policy still allows."""
        return self._get(path("models", name, "ledger"), Ledger)


class Versions(EndpointGroup[D]):
    """The published versions of a model's weights."""

    @operation
    def list(self, model: str) -> Procedure[tuple[Version, ...]]:
        """Return the versions of a model, newest first."""
        return self._get(path("models", model, "versions"), tuple[Version, ...])

    @operation
    def download(
        self,
        model: str,
        to: Path | str,
        *,
        version: int | str = "current",
        on_progress: OnProgress | None = None,
    ) -> Procedure[Path]:
        """Download the weights into the file `to`. Call it again to resume an interrupted download.

        Raises `DownloadCorrupt` if the file does not match the digest that the service announced.
        """
        url = path("models", model, "versions", version, "checkpoint")
        return download(url, Path(to), retry=self._retry, on_progress=on_progress)

    @operation
    def signature(self, model: str, *, version: int | str = "current") -> Procedure[bytes]:
        """Return `model.sig`, which the OpenSSF `model_signing` tool verifies."""
        return self._get_bytes(path("models", model, "versions", version, "signature"))


class Evaluations(EndpointGroup[D]):
    """Evaluations of a model on its holdout."""

    @operation
    def start(self, model: str) -> Procedure[Evaluation]:
        """Start scoring the current version on the holdout, next to a retrained model."""
        return self._post(_evaluations(model), Evaluation)

    @operation
    def get(self, model: str, evaluation_id: Id) -> Procedure[Evaluation]:
        """Return one evaluation."""
        return self._get(f"{_evaluations(model)}/{evaluation_id}", Evaluation)

    @listing
    def list(self, model: str, *, limit: int | None = None) -> ItemStream[Evaluation]:
        """Iterate over the evaluations of a model, newest first."""
        return self._get_pages(_evaluations(model), Evaluation, limit)

    @operation
    def wait(self, model: str, evaluation_id: Id, *, timeout: float | None = None) -> Procedure[Evaluation]:
        """Wait until the evaluation has completed or failed, and return it."""
        url = f"{_evaluations(model)}/{evaluation_id}"
        return self._watch(url, Evaluation, lambda report: report.ended, timeout=timeout)


def _evaluations(model: str) -> str:
    return path("models", model, "evaluations")


def replacement_patch(current: Any, wanted: Any) -> Any:
    """Return the JSON Merge Patch that turns the current manifest into the wanted one.

    Fields that are missing in the wanted one are set to null, which restores their defaults.

    >>> replacement_patch({"a": 1, "b": {"c": 2}}, {"b": {"d": 3}})
    {'a': None, 'b': {'c': None, 'd': 3}}
    """
    if not isinstance(current, Mapping) or not isinstance(wanted, Mapping):
        return wanted
    missing = {name: None for name in current if name not in wanted}
    return missing | {name: replacement_patch(current.get(name), value) for name, value in wanted.items()}

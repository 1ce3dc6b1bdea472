"""Certified releases: a published version, its certificate, and its files.

`lethe export`, `lethe card` and the integrations share these functions. Whatever they return or write has
been verified first.
"""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lethe.certificate.envelope import from_base64
from lethe.certificate.envelope import parse as parse_envelope
from lethe.certificate.errors import NotExportable, VerificationError
from lethe.certificate.onnx_file import head_of, join
from lethe.certificate.pack import Pack
from lethe.certificate.predicate import Predicate
from lethe.certificate.representation import CertifiedRepresentation
from lethe.certificate.statement import AnyPredicate, AnyStatement, parse
from lethe.certificate.verify import VerificationReport, verify
from lethe.client.errors import NotVerified, ReleaseUnavailable
from lethe.client.responses import Version
from lethe.client.transfers import OnProgress

if TYPE_CHECKING:
    from lethe.client.api import Lethe

TOKENIZER = "tokenizer.json"


@dataclass(frozen=True)
class Release:
    """A published version and its certificate. `digest` is the SHA-256 of the certificate's envelope."""

    model: str
    version: Version
    pack: Pack
    statement: AnyStatement
    digest: str

    @property
    def predicate(self) -> AnyPredicate:
        """What the certificate states about the release."""
        return self.statement.predicate

    @property
    def representation(self) -> CertifiedRepresentation | None:
        """The public function that turns raw rows into features, or None."""
        predicate = self.predicate
        return predicate.objective.representation if isinstance(predicate, Predicate) else None


@dataclass(frozen=True)
class OnnxExport:
    """An exported ONNX file that was verified, and the `tokenizer.json` of a model on texts."""

    onnx: Path
    tokenizer: Path | None


def find_release(lethe: "Lethe", model: str, number: int | None = None) -> Release:
    """Return a certified release of a model: the version `number`, or the current one.

    The certificate is verified under the keys that came with it, without the weights. Raise
    `ReleaseUnavailable` if there is no such version or if it has no certificate, and `NotVerified` if the
    certificate does not verify.
    """
    version = _certified_version(lethe, model, number)
    assert version.certificate_id is not None
    pack = lethe.certificates.pack(version.certificate_id)
    try:
        envelope = parse_envelope(from_base64(pack.envelope))
        statement = parse(envelope.payload)
    except VerificationError as error:
        raise ReleaseUnavailable(f"the certificate cannot be read: {error}") from None
    require_verified(verify(pack), "the certificate")
    predicate = statement.predicate
    if (predicate.model, predicate.version) != (model, version.number):
        raise NotVerified("the certificate", ("it is about another model or another version",))
    return Release(model, version, pack, statement, envelope.digest)


def export_onnx(
    lethe: "Lethe", release: Release, folder: Path, *, on_progress: OnProgress | None = None
) -> OnnxExport:
    """Write a release as `model.onnx` into an existing folder, together with its tokenizer if it has one.

    The file holds the representation's graph and the released weights, and it is verified. Raise
    `ReleaseUnavailable` if the model cannot be an ONNX file, and `NotVerified` if the file does not verify.
    Do not use what is in the folder then.
    """
    weights, graph, tokenizer = folder / "weights", None, None
    lethe.versions.download(release.model, weights, version=release.version.number, on_progress=on_progress)
    if (represented := release.representation) is not None:
        graph = lethe.models.download_representation(release.model, folder / "graph").read_bytes()
        tokenizer = _download_tokenizer(lethe, release.model, folder, represented)
    try:
        joined = join(graph, head_of(weights.read_bytes(), release.predicate))
    except NotExportable as error:
        raise ReleaseUnavailable(str(error)) from None
    weights.unlink()
    (folder / "graph").unlink(missing_ok=True)
    onnx = folder / "model.onnx"
    with onnx.open("wb") as file:
        file.write(joined)
        file.flush()
        os.fsync(file.fileno())
    require_verified(verify(release.pack, onnx=onnx), "the ONNX file")
    return OnnxExport(onnx, tokenizer)


def download_weights(
    lethe: "Lethe", release: Release, to: Path, *, on_progress: OnProgress | None = None
) -> Path:
    """Download the weights of a release as safetensors. Raise `NotVerified` if they are others."""
    lethe.versions.download(release.model, to, version=release.version.number, on_progress=on_progress)
    require_verified(verify(release.pack, weights=to), "the weights file")
    return to


def require_verified(report: VerificationReport, subject: str) -> None:
    """Raise `NotVerified` with every failed line of the report."""
    if not report.verified:
        lines = (f"{line.number}. {line.title}: {line.detail}" for line in report.failed)
        raise NotVerified(subject, tuple(lines))


def _certified_version(lethe: "Lethe", model: str, number: int | None) -> Version:
    """Return the version to use. Version 0 has no certificate, so it is refused."""
    for version in lethe.versions.list(model):
        if version.number == number or (number is None and version.state == "current"):
            if version.certificate_id is None:
                raise ReleaseUnavailable(
                    f"version {version.number} of {model} has no certificate: it is the model as registered, "
                    "without noise. Choose a version that was published after an erasure"
                )
            return version
    which = "published version" if number is None else f"version {number}"
    raise ReleaseUnavailable(f"{model} has no {which}. To list its versions, run: lethe model show {model}")


def _download_tokenizer(
    lethe: "Lethe", model: str, folder: Path, represented: CertifiedRepresentation
) -> Path | None:
    """Download the tokenizer of a model on texts. It must be the one that the certificate names."""
    if represented.tokenizer_sha256 is None:
        return None
    tokenizer = lethe.models.download_tokenizer(model, folder / TOKENIZER)
    if hashlib.sha256(tokenizer.read_bytes()).hexdigest() != represented.tokenizer_sha256:
        raise ReleaseUnavailable("the service's tokenizer is not the one that the certificate names")
    return tokenizer

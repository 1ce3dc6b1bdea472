"""The model file: its digest, streamed, the certificate its header names, and the weights it may hold."""

from __future__ import annotations

import hashlib
import io
import secrets
from pathlib import Path
from typing import BinaryIO

from certificate.errors import FileMismatch, UnusableInput
from certificate.predicate import Predicate
from certificate.records import printable
from certificate.safetensors import check_header, check_weights, read_header
from certificate.statement import AnyPredicate

CERTIFICATE_KEY = "lethe.certificate_id"
MODEL_KEY = "lethe.model"
VERSION_KEY = "lethe.version"
NONCE_KEY = "lethe.nonce"

_CHUNK = 1 << 20


def header_metadata(*, certificate_id: str, model: str, version: int) -> dict[str, str]:
    """Return the `__metadata__` that a released file carries."""
    return {CERTIFICATE_KEY: certificate_id, MODEL_KEY: model, VERSION_KEY: str(version)}


def nonce_metadata() -> dict[str, str]:
    """Return the `__metadata__` of version 0: random, so that its digest confirms no guess of the data."""
    return {NONCE_KEY: secrets.token_hex(16)}


def sha256_of(model: bytes | Path) -> str:
    """Return the SHA-256 of a file, read in pieces."""
    with _open(model) as stream:
        try:
            return _digest(stream)[0]
        except OSError as error:
            raise UnusableInput(f"model file: {printable(error)}") from None


def read_metadata(model: bytes | Path) -> dict[str, str] | None:
    """Return the `__metadata__` of a safetensors file, or None for any other file."""
    with _open(model) as stream:
        document = read_header(stream)
    metadata = None if document is None else document.get("__metadata__", {})
    if not isinstance(metadata, dict):
        return None
    return {str(key): str(value) for key, value in metadata.items()}


def check_file(model: bytes | Path, expected_sha256: str, predicate: AnyPredicate) -> str:
    """Check line 3 and return the detail to show, or raise `FileMismatch`."""
    if predicate.mechanism == "discarded":
        raise FileMismatch("the certificate is of a draw that was destroyed; no file can go with it")
    with _open(model) as stream:
        try:
            actual, size = _digest(stream)
            if actual != expected_sha256:
                raise FileMismatch(f"the file's sha256 is {actual}, the certificate is for {expected_sha256}")
            stream.seek(0)
            if isinstance(predicate, Predicate):
                return f"sha256 {actual}, {_check_contents(stream, size, predicate)}"
        except OSError as error:
            raise UnusableInput(f"model file: {printable(error)}") from None
    return f"sha256 {actual}{_check_header_v1(model, predicate)}"


def _check_contents(stream: BinaryIO, size: int, predicate: Predicate) -> str:
    """The file is nothing but the weights that the certificate counts, each on the public grid."""
    header = check_header(stream, size)
    expected = header_metadata(
        certificate_id=predicate.certificate_id, model=predicate.model, version=predicate.version
    )
    for key, value in expected.items():
        if header.metadata.get(key) != value:
            named = printable(header.metadata.get(key))
            raise FileMismatch(f"the file's header says {key} is {named!r}, not {value!r}")
    if header.metadata.keys() != expected.keys():
        surplus = ", ".join(sorted(printable(key) for key in header.metadata.keys() - expected.keys()))
        raise FileMismatch(f"the file's header says more than a released one does: {surplus}")
    dimension = predicate.objective.dimension
    if header.weights != dimension:
        raise FileMismatch(f"the file holds {header.weights} weights, the certificate is for {dimension}")
    check_weights(stream, header, predicate.noise.grid_step)
    return f"{dimension} weights ({header.dtype}), each a multiple of {predicate.noise.grid_step:g}"


def _check_header_v1(model: bytes | Path, predicate: AnyPredicate) -> str:
    """Version 1 certified any kind of file: where its header names a certificate, it names this one."""
    metadata = read_metadata(model) or {}
    expected = header_metadata(
        certificate_id=predicate.certificate_id, model=predicate.model, version=predicate.version
    )
    for key, value in expected.items():
        if key in metadata and metadata[key] != value:
            raise FileMismatch(f"the file's header says {key} is {printable(metadata[key])!r}, not {value!r}")
    return ", header names this certificate" if CERTIFICATE_KEY in metadata else ""


def _digest(stream: BinaryIO) -> tuple[str, int]:
    digest, size = hashlib.sha256(), 0
    while chunk := stream.read(_CHUNK):
        digest.update(chunk)
        size += len(chunk)
    return digest.hexdigest(), size


def _open(model: bytes | Path) -> BinaryIO:
    if isinstance(model, bytes):
        return io.BytesIO(model)
    try:
        return model.open("rb")
    except (OSError, ValueError) as error:
        raise UnusableInput(f"model file: {printable(error)}") from None

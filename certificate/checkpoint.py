"""The model file: its digest, streamed, and the certificate its safetensors header names."""

from __future__ import annotations

import hashlib
import io
import json
import secrets
from pathlib import Path
from typing import BinaryIO

from certificate.errors import FileMismatch, UnusableInput
from certificate.records import printable
from certificate.statement import AnyPredicate

CERTIFICATE_KEY = "lethe.certificate_id"
MODEL_KEY = "lethe.model"
VERSION_KEY = "lethe.version"
NONCE_KEY = "lethe.nonce"

_CHUNK = 1 << 20
_MAX_HEADER = 100_000_000  # the safetensors format's own limit


def header_metadata(*, certificate_id: str, model: str, version: int) -> dict[str, str]:
    """The `__metadata__` a released checkpoint carries."""
    return {CERTIFICATE_KEY: certificate_id, MODEL_KEY: model, VERSION_KEY: str(version)}


def nonce_metadata() -> dict[str, str]:
    """Return the `__metadata__` of version 0: random, so that its digest confirms no guess of the data."""
    return {NONCE_KEY: secrets.token_hex(16)}


def sha256_of(model: bytes | Path) -> str:
    digest = hashlib.sha256()
    with _open(model) as stream:
        try:
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
        except OSError as error:
            raise UnusableInput(f"model file: {printable(error)}") from None
    return digest.hexdigest()


def read_metadata(model: bytes | Path) -> dict[str, str] | None:
    """`__metadata__` of a safetensors file; None for any other file.

    The format: eight bytes, little-endian, the length of the JSON header that follows.
    """
    with _open(model) as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 2 <= length <= _MAX_HEADER:
            return None
        header = stream.read(length)
    try:
        document = json.loads(header) if len(header) == length else None
    except (ValueError, RecursionError):
        return None
    metadata = document.get("__metadata__", {}) if isinstance(document, dict) else None
    if not isinstance(metadata, dict):
        return None
    return {str(key): str(value) for key, value in metadata.items()}


def check_file(model: bytes | Path | None, expected_sha256: str, predicate: AnyPredicate) -> str:
    """Checklist line 3; the detail to show, or `FileMismatch`."""
    if predicate.mechanism == "discarded":
        if model is not None:
            raise FileMismatch("the certificate is of a draw that was destroyed; no file can go with it")
        return "a draw that was evaluated and destroyed: there is no file"
    if model is None:
        raise FileMismatch("no model file was given, so the certificate is tied to none")
    actual = sha256_of(model)
    if actual != expected_sha256:
        raise FileMismatch(f"the file's sha256 is {actual}, the certificate is for {expected_sha256}")
    return f"sha256 {actual}{_check_header(model, predicate)}"


def _check_header(model: bytes | Path, predicate: AnyPredicate) -> str:
    metadata = read_metadata(model) or {}
    expected = header_metadata(
        certificate_id=predicate.certificate_id, model=predicate.model, version=predicate.version
    )
    for key, value in expected.items():
        if key in metadata and metadata[key] != value:
            raise FileMismatch(f"the file's header says {key} is {printable(metadata[key])!r}, not {value!r}")
    return ", header names this certificate" if CERTIFICATE_KEY in metadata else ""


def _open(model: bytes | Path) -> BinaryIO:
    if isinstance(model, bytes):
        return io.BytesIO(model)
    try:
        return model.open("rb")
    except (OSError, ValueError) as error:
        raise UnusableInput(f"model file: {printable(error)}") from None

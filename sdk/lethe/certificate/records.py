"""The base class of all documents, their value types, strict JSON parsing and deterministic JSON output."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, NoReturn, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from lethe.certificate.errors import UnusableInput
from lethe.certificate.validation import validation_message

# Far above any real document: a hostile one must not exhaust the memory of an auditor's machine. A parsed
# container or item takes about a hundred times its bytes, so both are counted before anything is parsed.
MAX_DOCUMENT = 16 * 1024 * 1024
MAX_CONTAINERS = 50_000
MAX_ITEMS = 200_000
_MAX_PROBLEMS = 1000

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Salt = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
# Control characters would let a document write to the terminal of the person who verifies it.
Text = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f-\x9f]+$", max_length=4000)]
# Free text written by a model's owner.
Declaration = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f-\x9f]+$", max_length=500)]
ModelName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
LayerName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*$", max_length=200)]
FamilyName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,49}$")]
SoftwareVersion = Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z][0-9A-Za-z.+_-]{0,63}$")]
# For example "cpu" or "cuda (NVIDIA A100-SXM4-80GB)".
DeviceName = Annotated[str, StringConstraints(pattern=r"^[a-z]{1,16}( \([ -~]{1,100}\))?$")]
# For example "torch.num_threads=2" or "CUBLAS_WORKSPACE_CONFIG=:4096:8".
RuntimeFlag = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.]{1,100}=[A-Za-z0-9_.:,-]{0,100}$")]
Uuid7 = Annotated[
    str, StringConstraints(pattern=r"^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$")
]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Probability = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=0, lt=2**53)]


def at_most(length: int) -> Any:
    """Return a constraint for a tuple of at most `length` items, read only up to its first mistake."""
    return Field(max_length=length, fail_fast=True)


# A proof has one hash for each level of a tree of fewer than 2⁵³ leaves.
ProofPath = Annotated[tuple[Sha256, ...], at_most(64)]


class Record(BaseModel):
    """A document or a part of one: frozen, with no unknown fields, no type coercion, no NaN or infinity.

    `size_factor` multiplies the size limits for a document that does not come from a stranger.
    """

    size_factor: ClassVar[int] = 1
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def to_bytes(self) -> bytes:
        """Return the record's only serialisation: sorted keys, no spaces, shortest exact floats."""
        return canonical_json(self.model_dump(mode="json", by_alias=True))

    @classmethod
    def read(cls, data: bytes, what: str) -> Self:
        """Parse `data`, or raise `UnusableInput` with a one-line reason. `what` names the document."""
        check_object(data, what, size_factor=cls.size_factor)
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            raise UnusableInput(f"{what}: {first_problem(error)}") from None


def canonical_json(value: Any) -> bytes:
    """Serialise `value` to JSON with sorted keys, no spaces and no NaN."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()


def read_object(data: bytes, what: str) -> dict[str, Any]:
    """Parse a JSON object without duplicate keys or NaN, or raise `UnusableInput`.

    Duplicate keys are refused because two readers of the same signed bytes must see the same values.
    """
    value = _parse(data, what, unique_keys, size_factor=1)
    if not isinstance(value, dict):
        raise UnusableInput(f"{what}: not a JSON object")
    return value


def check_object(data: bytes, what: str, *, size_factor: int = 1) -> None:
    """Make the checks of `read_object` in little memory: each inner object is checked and dropped."""
    if not isinstance(_parse(data, what, _check_and_drop, size_factor=size_factor), _Dropped):
        raise UnusableInput(f"{what}: not a JSON object")


def _parse(data: bytes, what: str, hook: Callable[[list[tuple[str, Any]]], Any], *, size_factor: int) -> Any:
    _check_size(data, what, size_factor)
    try:
        return json.loads(data.decode(), object_pairs_hook=hook, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise UnusableInput(f"{what}: not valid JSON ({json_problem(error)})") from None


def json_problem(error: ValueError | RecursionError) -> str:
    """Say in a few words why bytes could not be read as JSON.

    >>> try: json.loads("{")
    ... except ValueError as error: json_problem(error)
    'line 1, column 2'
    """
    match error:
        case json.JSONDecodeError():
            return f"line {error.lineno}, column {error.colno}"
        case UnicodeDecodeError():
            return "it is not UTF-8 text"
        case RecursionError():
            return "it is nested too deeply"
        case _:
            return printable(error)


def _check_size(data: bytes, what: str, factor: int) -> None:
    """Refuse a document that would exhaust memory once parsed.

    Brackets and commas inside strings count too, which errs on the safe side.
    """
    if len(data) > factor * MAX_DOCUMENT:
        raise UnusableInput(f"{what}: larger than the limit of {factor * MAX_DOCUMENT} bytes")
    if data.count(b"{") + data.count(b"[") > factor * MAX_CONTAINERS:
        raise UnusableInput(f"{what}: more than {factor * MAX_CONTAINERS} objects and lists")
    if data.count(b",") > factor * MAX_ITEMS:
        raise UnusableInput(f"{what}: more than {factor * MAX_ITEMS} items")


class _Dropped:
    """Stands for an object whose keys were unique."""


_DROPPED = _Dropped()


def _check_and_drop(pairs: list[tuple[str, Any]]) -> _Dropped:
    unique_keys(pairs)
    return _DROPPED


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object with these keys and values, or raise `ValueError` if a key occurs twice."""
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key occurs twice in one object")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def first_problem(error: ValidationError) -> str:
    """Describe the first problem of a document in one line that starts with the field's path."""
    if error.error_count() > _MAX_PROBLEMS:  # listing them would take as much memory as the document
        return f"document: {error.error_count()} problems"
    problem = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in problem["loc"]) or "document"
    match problem["type"]:
        case "missing":
            text = "this field is missing"
        case "extra_forbidden":
            text = "this field is unknown"
        case "value_error":
            text = str(problem.get("ctx", {}).get("error", problem["msg"]))
        case _:
            text = validation_message(problem)
    return printable(f"{where}: {text}")


def file_problem(error: Exception) -> str:
    """Describe why a file could not be opened or read, in one line."""
    reason = error.strerror if isinstance(error, OSError) else None
    if isinstance(error, UnicodeDecodeError):
        reason = "it is not UTF-8 text"
    name = error.filename if isinstance(error, OSError) else None
    text = reason or str(error)
    return printable(f"cannot read {name!s}: {text}" if name else f"cannot be read: {text}")


def printable(value: object) -> str:
    """Return `value` as one line of at most 500 characters that cannot control a terminal."""
    text = str(value)[:500]
    return "".join(character if character.isprintable() else "?" for character in text)


def new_salt() -> str:
    """Return 128 random bits from the operating system, in hexadecimal."""
    return secrets.token_hex(16)

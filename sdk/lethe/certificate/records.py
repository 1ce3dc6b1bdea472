"""The base of every record, its value types, and two JSON habits: strict reading, deterministic writing."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, NoReturn, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from certificate.errors import UnusableInput

# Far above any real document; an auditor's machine should not be filled by a hostile one. A parsed container
# or item takes a hundred times its bytes, so they are counted before anything is parsed.
MAX_DOCUMENT = 16 * 1024 * 1024
MAX_CONTAINERS = 50_000
MAX_ITEMS = 200_000
_MOST_PROBLEMS = 1000

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Salt = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
# Control characters would let a document write on the terminal of whoever verifies it.
Text = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f-\x9f]+$", max_length=4000)]
# A declaration in the words of a model's owner.
Declaration = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f-\x9f]+$", max_length=500)]
ModelName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
FamilyName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,49}$")]
SoftwareVersion = Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z][0-9A-Za-z.+_-]{0,63}$")]
# "cpu", or "cuda (NVIDIA A100-SXM4-80GB)".
DeviceName = Annotated[str, StringConstraints(pattern=r"^[a-z]{1,16}( \([ -~]{1,100}\))?$")]
# "torch.num_threads=2", ":4096:8" behind the name of an environment variable.
RuntimeFlag = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.]{1,100}=[A-Za-z0-9_.:,-]{0,100}$")]
Uuid7 = Annotated[
    str, StringConstraints(pattern=r"^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$")
]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Probability = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=0, lt=2**53)]


def at_most(length: int) -> Any:
    """For a tuple: no longer than `length`, and read no further than its first mistake."""
    return Field(max_length=length, fail_fast=True)


# A proof holds a hash for each level of a tree of fewer than 2⁵³ leaves.
ProofPath = Annotated[tuple[Sha256, ...], at_most(64)]


class Record(BaseModel):
    """Frozen, no unknown fields, no coercion, no NaN or infinity.

    `room` multiplies the limits on size for a document that is read from one's own side only.
    """

    room: ClassVar[int] = 1
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def to_bytes(self) -> bytes:
        """The record's one serialisation: sorted keys, no spaces, shortest float that reads back the same."""
        return canonical_json(self.model_dump(mode="json", by_alias=True))

    @classmethod
    def read(cls, data: bytes, what: str) -> Self:
        """Parse `data`, or say in one line why it is not `what`."""
        check_object(data, what, room=cls.room)
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            raise UnusableInput(f"{what}: {first_problem(error)}") from None


def canonical_json(value: Any) -> bytes:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()


def read_object(data: bytes, what: str) -> dict[str, Any]:
    """A JSON object with no duplicate keys and no NaN.

    Duplicate keys are refused because two readers of the same signed bytes must see the same values.
    """
    value = _parsed(data, what, _unique, room=1)
    if not isinstance(value, dict):
        raise UnusableInput(f"{what}: not a JSON object")
    return value


def check_object(data: bytes, what: str, *, room: int = 1) -> None:
    """The checks of `read_object` without its result: objects are looked at and dropped one by one."""
    if not isinstance(_parsed(data, what, _unique_and_dropped, room=room), _Dropped):
        raise UnusableInput(f"{what}: not a JSON object")


def _parsed(data: bytes, what: str, hook: Callable[[list[tuple[str, Any]]], Any], *, room: int) -> Any:
    _check_size(data, what, room)
    try:
        return json.loads(data.decode(), object_pairs_hook=hook, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise UnusableInput(f"{what}: not readable as JSON ({printable(error)})") from None


def _check_size(data: bytes, what: str, room: int) -> None:
    """Refuse what would fill the memory once parsed. Characters inside texts count too, on the safe side."""
    if len(data) > room * MAX_DOCUMENT:
        raise UnusableInput(f"{what}: larger than {room * MAX_DOCUMENT} bytes")
    if data.count(b"{") + data.count(b"[") > room * MAX_CONTAINERS:
        raise UnusableInput(f"{what}: more than {room * MAX_CONTAINERS} objects and lists")
    if data.count(b",") > room * MAX_ITEMS:
        raise UnusableInput(f"{what}: more than {room * MAX_ITEMS} items")


class _Dropped:
    """Stands for an object whose keys were unique."""


_DROPPED = _Dropped()


def _unique_and_dropped(pairs: list[tuple[str, Any]]) -> _Dropped:
    _unique(pairs)
    return _DROPPED


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key occurs twice in one object")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def first_problem(error: ValidationError) -> str:
    if error.error_count() > _MOST_PROBLEMS:  # each would be spelled out in memory
        return f"document: {error.error_count()} problems"
    problem = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in problem["loc"]) or "document"
    return printable(f"{where}: {problem['msg']}")


def printable(value: object) -> str:
    """`value` as one line that cannot steer a terminal."""
    text = str(value)[:500]
    return "".join(character if character.isprintable() else "?" for character in text)


def new_salt() -> str:
    """128 random bits from the operating system, in hexadecimal."""
    return secrets.token_hex(16)
